"""Training of a recogniser: losses of its head, word errors on the validation set, a bundle that is tested."""

import hashlib
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from asr.base.text.normalize import get_normalizer
from asr.core import build
from asr.core.checkpoint.adapted import ADAPTER, base_config, own_tensors
from asr.core.checkpoint.bundle import check_attachable
from asr.core.checkpoint.load import checkpoint_extra, fitted_files
from asr.core.data.batch import Batch
from asr.core.data.corpus import Corpus
from asr.core.data.index_cache import IndexCache
from asr.core.data.labels import Labels
from asr.core.data.round_trip import warn_of_changes
from asr.core.data.selection import check_dropped
from asr.core.data.split import describe_shared, num_shared_texts
from asr.core.data.token_counts import TokenCounts, frequency_loss, stored_counts
from asr.core.data.training_set import TrainingSet
from asr.core.objective.outcome import check_learnt, finish
from asr.core.objective.speech import (
    SpeechInputs,
    built,
    describe,
    enter,
    open_corpus,
    read_settings,
    too_large,
    training_set,
    zero_loss,
)
from asr.core.objective.word_validation import RecognitionValidation
from asr.core.recognition.model import Model
from asr.core.recognition.recognizer import Recognizer
from asr.core.run import folder
from asr.core.run.initialization import Initialization, start_of
from asr.core.run.names import EXAMPLES
from asr.core.run.run import Run
from asr.core.run.settings import RunSettings
from asr.core.run.validation_samples import SamplesFile, choose_samples
from asr.core.training.objective import WER, Built, FindBatchSeconds, Losses, Measure, Rate
from asr.errors import InputError
from asr.interfaces import Metric, Tokenizer

MAX_COMPARED = 1_000_000  # training texts that are compared with the test's, which takes seconds

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TranscribedInputs(SpeechInputs):
    """Speech with texts.

    Args:
        tokenizer: fitted tokenizer.
        labels: fitted labels of the prompt.
    """

    tokenizer: Tokenizer
    labels: Labels


class TrainableRecognizer:
    """A recogniser with its head's losses, per token of the references.

    Args:
        recognizer: contains the model to train; decodes the validation set.
        samples: ids of the utterances whose hypotheses each validation records, and the file for these hypotheses.
        valid_manifests: names of the validation manifests.
        metrics: further metrics of validations, by name.
        own_tensors: names of the model's tensors that a checkpoint contains; None: all. The other tensors never change.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        samples: SamplesFile,
        valid_manifests: Sequence[str],
        metrics: Mapping[str, Metric],
        own_tensors: Collection[str] | None,
    ) -> None:
        self.recognizer, self.own_tensors = recognizer, own_tensors
        self.model = model = recognizer.model
        self.loss_names: Sequence[str] = model.head.loss_names
        self.rate = Rate(
            "audio_seconds", "s of audio", model.features.hop / model.features.sample_rate / model.head.views
        )
        self.blocks: Sequence[nn.Module] = [block.module for _, block in model.encoder.named_blocks()]
        self.depths: Mapping[str, int] = model.depths
        self._of_validation = valid_manifests, samples, metrics

    def losses(self, batch: Batch) -> Losses:
        """Compute the losses of the head for each utterance, (B,) each."""
        encoded = self.model.encode(batch)
        return Losses(self.model.head.losses(encoded, batch.targets), batch.token_lengths)

    def idle(self) -> Tensor:
        """Return the zero loss, (1,), of a batch without utterances; it takes part in all collective operations."""
        model = self.model
        device = next(model.parameters()).device
        features = torch.zeros(1, model.encoder.stride, model.features.dim, device=device)
        unknown = {name: ids.to(device) for name, ids in model.labels.conditions([{}]).items()}
        encoded = model(features, torch.zeros(1, dtype=torch.int64, device=device), unknown)
        return zero_loss(encoded.out, cast(nn.Module, model.head))

    def too_large(self, batch: Batch | None) -> str:
        """Return the error message for a batch that does not fit into memory."""
        return too_large(batch, self.model.features)

    def validation(self, step: int, epoch: int) -> RecognitionValidation:
        """Begin a validation."""
        return RecognitionValidation(self.recognizer, *self._of_validation, step, epoch)


class Recognition:
    """The objective of a recogniser: the loss of its head; the measure is the WER."""

    command: ClassVar[str] = "train"
    measure: ClassVar[Measure] = WER
    sections: ClassVar[Sequence[str]] = ("normalizer", "features", "tokenizer", "encoder", "decode", "head")
    optional: ClassVar[Sequence[str]] = ("augment", "prompt", "adapter", "metric")

    read = staticmethod(read_settings)

    def check(self, components: Mapping[str, Any]) -> None:
        """Check the settings of all components before a training begins."""
        build.check_components(components)

    def trainable(self, *parts: Any) -> TrainableRecognizer:
        """Make the recogniser with its losses; another objective on transcribed speech replaces this method."""
        return TrainableRecognizer(*parts)

    def prepare(
        self, run: Run[RunSettings], find_batch_seconds: FindBatchSeconds | None
    ) -> tuple[Run[RunSettings], TranscribedInputs]:
        """Read the corpus, and fit tokenizer and features.

        The first process stores the fitted files. The other processes must call this function afterwards, to load them.
        """
        settings, components = run.settings, run.settings.components
        check_attachable(components)  # checked before training: some kinds of language model cannot be in a bundle
        corpus = open_corpus(run, get_normalizer(components["normalizer"]))
        start = start_of(settings.init)
        tokenizer, features, labels = folder.fitted_front_end(settings, corpus, run.is_first, start)
        files = fitted_files(tokenizer, features, labels)
        augmentation = build.build_augmentation(components, features.sample_rate)
        speech = TranscribedInputs(corpus, features, augmentation, start, tokenizer, labels)
        if settings.data.plan.batches.is_auto:
            seconds = _batch_seconds(run, speech, find_batch_seconds)
            logger.info("data.batch_seconds=auto: %g", seconds)
            settings = settings.with_batch_seconds(seconds).with_accumulation()
        if settings.data.step_seconds is not None and run.is_first:
            logger.info(settings.step_size)
        base = base_config(start.fingerprint, start.source) if start and ADAPTER in components else None
        as_fitted = {**components, "tokenizer": _as_fitted(components["tokenizer"], tokenizer)}
        extra = checkpoint_extra(as_fitted, files, base=base)
        return enter(replace(run, settings=settings), speech, files, extra), speech

    def build(self, run: Run[RunSettings], speech: TranscribedInputs) -> Built[TranscribedInputs]:
        """Make the recogniser, with the weights of the initial model, and the training set."""
        settings, whole = run.settings, speech.corpus
        components = settings.components
        recognizer = build.build_recognizer(components, speech.tokenizer, speech.features, speech.labels)
        model = recognizer.model
        own = _initialize(model, speech.start, ADAPTER in components)
        train = training_set(settings, speech, model.reference, training_counts(settings, whole, model))
        check_dropped(train.dropped, train.num_given, settings.data.max_dropped_fraction)
        if settings.debug.same_utterances:
            speech = replace(speech, corpus=whole.only(train.utterances))
        _describe(run, model, whole, speech, train)
        valid = speech.corpus.valid
        samples = SamplesFile(run.dir / EXAMPLES, choose_samples(valid))
        if run.is_first:
            samples.cut(run.step)  # samples of validations that will be repeated
        metrics = build.build_metrics(components)
        trainable = self.trainable(recognizer, samples, valid.manifests, metrics, own)
        return built(run, speech, trainable, train, lambda: frequency_loss(whole.train, speech.tokenizer.encode))

    def finish(self, run: Run[RunSettings], speech: TranscribedInputs, device: torch.device) -> None:
        """Write the bundle, test it, and compare it with the initial model."""
        corpus, max_wer = speech.corpus, run.settings.debug.max_wer
        valid_words = sum(len(text.split()) for text in corpus.valid.texts)
        results = finish(run.settings, corpus.all_tests, device, speech.start, valid_words)
        if results and max_wer is not None:
            check_learnt(results, max_wer)


def training_counts(settings: RunSettings, corpus: Corpus, model: Model) -> TokenCounts:
    """Count the tokens of the training texts, or read stored counts; check that the tokenizer covers all texts.

    A tokenizer that changes texts is reported as a warning.
    """
    files = fitted_files(model.tokenizer, model.features)  # labels do not change the tokens
    learnt = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    parts = [settings.components[group] for group in ("normalizer", "tokenizer", "head")]
    counts = stored_counts(corpus.train, model.reference, IndexCache(settings.data.index_dir), repr((parts, learnt)))
    corpus.check_coverage(model.reference)
    warn_of_changes(corpus.train, model.tokenizer)
    return counts


def _batch_seconds(
    run: Run[RunSettings], speech: TranscribedInputs, find_batch_seconds: FindBatchSeconds | None
) -> float:
    """Return the number for `data.batch_seconds=auto`: found in a new run, or that of the run that is resumed."""
    settings, corpus = run.settings, speech.corpus
    if run.resume is None and run.is_first:
        if find_batch_seconds is None:
            raise InputError("data.batch_seconds must be a number, because asr/apps/doctor is absent; got auto.")
        model = build.build_model(settings.components, speech.tokenizer, speech.features, speech.labels)
        return find_batch_seconds(settings, corpus.train, model, training_counts(settings, corpus, model))
    stored = run.resume.run.settings if run.resume else folder.read_config(run.dir)
    return float(stored["data"]["batch_seconds"])


def _as_fitted(chosen: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the settings of a tokenizer with its size after an extension."""
    return {**chosen, **({"vocab_size": tokenizer.vocab_size} if "vocab_size" in chosen else {})}


def _initialize(model: Model, start: Initialization | None, is_adapted: bool) -> frozenset[str] | None:
    """Load the initial model, if any, into a new model; return the names of a checkpoint's tensors, None: all."""
    if start is None:
        return None
    if not start.recognises and is_adapted:
        must = f"adapter must be null with {start.source}, an encoder without a head"
        raise InputError(f"{must}: all weights of the new head are trained. Leave out adapter.")
    start.load(model)
    if not is_adapted:
        return None
    own = own_tensors(model)
    _check_base(model, own, start.bundle.weights, start.source)
    return own


def _check_base(model: nn.Module, own: frozenset[str], base: Mapping[str, Tensor], source: str) -> None:
    """Check that all tensors except `own` equal the base's, so that base and checkpoint together make up the model."""
    state = model.state_dict()
    for name, tensor in state.items():
        if name in own:
            continue
        if name not in base or not torch.equal(base[name].to(tensor.dtype), tensor):
            must = f"adapter.trained must name the weights that differ from {source}"
            raise InputError(f"{must}; {name} is missing. Add it, or do not replace its component.")
    if unused := sorted(base.keys() - state.keys()):
        must = f"with an adapter, the model must use each tensor of {source}"
        raise InputError(f"{must}; {unused[0]} is unused. Do not replace its component.")


def _describe(
    run: Run[RunSettings], model: Model, whole: Corpus, speech: TranscribedInputs, train: TrainingSet
) -> None:
    """Log the sizes of the model, of the whole corpus and of the speech in use, and the run's provenance."""
    corpus, labels = speech.corpus, speech.labels
    parameters = sum(parameter.numel() for parameter in model.parameters())
    name, tokens = type(model.encoder).__name__, model.tokenizer.vocab_size
    logger.info("%s with %s parameters, %d tokens", name, f"{parameters:,}", tokens)
    describe(whole, corpus, train)
    for label in labels.names:
        logger.info("%s is one of %s", label, ", ".join(labels.values(label)))
    for split, utterances in (("training", corpus.train), ("validation", corpus.valid)):
        for line in labels.describe_unknown(utterances):
            logger.warning("%s: %s", split, line)
    tests = [text for utterances in corpus.all_tests.values() for text in utterances.texts]
    shared = num_shared_texts(corpus.train.texts, tests) if len(corpus.train) <= MAX_COMPARED else 0
    if shared:
        logger.info(describe_shared(shared, len(tests)))
    trained = {"utterances": len(corpus.train), "hours": corpus.train.hours}
    validated = {"utterances": len(corpus.valid)} if corpus.valid else {}
    run.record_start(name, {"parameters": parameters, "tokens": tokens}, trained, validated, shared)
