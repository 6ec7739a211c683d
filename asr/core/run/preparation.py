"""Start of a run: folder, corpus and its fingerprint, fitted tokenizer and features, checkpoint to resume from."""

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from asr.base.settings.read import as_mapping
from asr.base.text.normalize import Normalizer, get_normalizer
from asr.core.build import build_augmentation, build_model
from asr.core.checkpoint.adapted import ADAPTER, base_config, own_tensors
from asr.core.checkpoint.bundle import check_attachable
from asr.core.checkpoint.load import checkpoint_extra, fitted_files
from asr.core.checkpoint.saved import CHECKPOINTS
from asr.core.data.corpus import Corpus, prepare_if_absent, read_corpus
from asr.core.data.index_cache import IndexCache, spread
from asr.core.data.manifest import REQUIRED_KEYS, Utterance
from asr.core.data.round_trip import warn_of_changes
from asr.core.data.split import describe_shared, num_shared_texts
from asr.core.data.token_counts import TokenCounts, frequency_loss, stored_counts
from asr.core.data.utterances import Utterances
from asr.core.run import folder
from asr.core.run.initialization import Initialization, start_of
from asr.core.run.names import EXAMPLES
from asr.core.run.resume import Resume, changes, find_resume, run_settings
from asr.core.run.run_state import PreparedRun, RunState, enter_run
from asr.core.run.settings import RunSettings
from asr.core.run.validation_samples import SamplesFile, choose_samples
from asr.errors import InputError

if TYPE_CHECKING:
    from asr.core.data.dataset import Augmentation
    from asr.core.data.labels import Labels
    from asr.core.data.manifest import Utterance
    from asr.core.data.training_set import TrainingSet
    from asr.core.recognition.model import Model
    from asr.interfaces import Features, Tokenizer

FindBatchSeconds = Callable[[RunSettings, Utterances, "Model", TokenCounts], float]

MAX_COMPARED = 1_000_000  # training texts that are compared with the test's, which takes seconds

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedSpeech(PreparedRun):
    """Everything that a run on speech prepares before it creates the model.

    Args:
        corpus: corpus to train on.
        features: fitted features.
        augmentation: augmentation of the training utterances.
        start: the initial model; None: random weights.
    """

    settings: RunSettings
    corpus: Corpus
    features: "Features"
    augmentation: "Augmentation"
    start: Initialization | None

    def loss_by_frequency(self) -> float | None:
        """Return the loss per token of a model that knows only how frequent each token is; None: it is unknown."""
        return None

    def describe_speech(self, corpus: Corpus, training_set: "TrainingSet") -> None:
        """Log the size of the corpus.

        Args:
            corpus: the utterances in use; with `debug.same_utterances`, a few utterances of the manifests.
            training_set: training set of `corpus`.
        """
        whole = self.corpus.train
        logger.info("%d training utterances in the manifests, %.2f h", len(whole), whole.hours)
        if corpus is not self.corpus:
            used = f"{len(corpus.train)} utterances, {corpus.train.hours:.2f} h"
            logger.info("debug.same_utterances: training and validating on %s", used)
        else:
            logger.info("%d validation utterances", len(corpus.valid))
        for line in training_set.describe_mixture():
            logger.info("%s", line.strip())
        corpus.note_conversion(self.features.sample_rate)


@dataclass(frozen=True)
class Prepared(PreparedSpeech):
    """Everything that a recogniser's run prepares before it creates the model.

    The normaliser in the settings of a resumed run may be an earlier version of the given one.

    Args:
        tokenizer: fitted tokenizer.
        labels: fitted labels of the prompt.
    """

    tokenizer: "Tokenizer"
    labels: "Labels"

    def loss_by_frequency(self) -> float | None:
        """Return the loss per token of a model that knows only how frequent each token is."""
        return frequency_loss(self.corpus.train, self.tokenizer.encode)

    def initialize(self, model: "Model") -> frozenset[str] | None:
        """Load the weights of the initial model, if any, into a new model.

        Returns:
            Names of the tensors that a checkpoint contains; None: all.
        """
        if self.start is not None and not self.start.recognises and ADAPTER in self.state.settings:
            must = f"adapter must be null with {self.start.source}, an encoder without a head"
            raise InputError(f"{must}: all weights of the new head are trained. Leave out adapter.")
        if self.start is not None:
            self.start.load(model)
        if self.start is None or ADAPTER not in self.state.settings:
            return None
        own = own_tensors(model)
        check_base(model, own, self.start.bundle.weights, self.start.source)
        return own

    def describe(self, model: "Model", corpus: Corpus, training_set: "TrainingSet") -> None:
        """Log the sizes of model and corpus, and the run's provenance.

        Args:
            model: the model to train.
            corpus: the utterances in use; with `debug.same_utterances`, a few utterances of the manifests.
            training_set: training set of `corpus`.
        """
        parameters = sum(parameter.numel() for parameter in model.parameters())
        hours = corpus.train.hours
        name, tokens = type(model.encoder).__name__, model.tokenizer.vocab_size
        logger.info("%s with %s parameters, %d tokens", name, f"{parameters:,}", tokens)
        self.describe_speech(corpus, training_set)
        for name in self.labels.names:
            logger.info("%s is one of %s", name, ", ".join(self.labels.values(name)))
        for split, utterances in (("training", corpus.train), ("validation", corpus.valid)):
            for line in self.labels.describe_unknown(utterances):
                logger.warning("%s: %s", split, line)
        tests = [text for utterances in corpus.all_tests.values() for text in utterances.texts]
        shared = num_shared_texts(corpus.train.texts, tests) if len(corpus.train) <= MAX_COMPARED else 0
        if shared:
            logger.info(describe_shared(shared, len(tests)))
        trained = {"utterances": len(corpus.train), "hours": hours}
        validated = {"utterances": len(corpus.valid)} if corpus.valid else {}
        self.state.record_start(name, {"parameters": parameters, "tokens": tokens}, trained, validated, shared)

    def validation_samples(self, utterances: "Sequence[Utterance]") -> SamplesFile:
        """Open the file of validation samples; remove samples of validations that will be repeated."""
        samples = SamplesFile(self.state.run_dir / EXAMPLES, choose_samples(utterances))
        if self.state.writes:
            samples.cut(self.state.step)
        return samples


def training_counts(settings: RunSettings, corpus: Corpus, model: "Model") -> TokenCounts:
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


@dataclass(frozen=True)
class OpenedRun:
    """A run folder that is open, and the corpus; nothing is fitted yet.

    Args:
        settings: settings of the run.
        rank, world_size: rank of this process, and number of processes.
        resume: the checkpoint to resume from; None in a new run.
        corpus: corpus to train on.
        start: the initial model; None: random weights.
    """

    settings: RunSettings
    rank: int
    world_size: int
    resume: Resume | None
    corpus: Corpus
    start: Initialization | None

    def enter(self, files: Mapping[str, bytes], augmentation: "Augmentation") -> RunState:
        """Check that the settings, the data and the fitted files allow the run to start or resume; write its config.

        Args:
            files: files of fitted components, by name.
            augmentation: augmentation of the training utterances.
        """
        settings, corpus, start = self.settings, self.corpus, self.start
        cache = IndexCache(settings.data.index_dir)
        normalizer = repr(settings.components.get("normalizer"))
        manifests = {
            "train": stored_fingerprint(corpus.train, cache, normalizer, settings.corpus.labels),
            "valid": stored_fingerprint(corpus.valid, cache, normalizer, settings.corpus.labels),
            **mixture_of(corpus.train),
            **{name: fingerprint(recordings.utterances) for name, recordings in augmentation.recordings.items()},
        }
        compared = {**files, **({"init.from": start.fingerprint} if start else {})}
        compared_settings = run_settings(as_mapping(settings), manifests, compared, self.world_size)
        changed = changes(self.resume.run.settings, compared_settings) if self.resume else {}
        return enter_run(settings, compared_settings, self.resume, changed, self.rank, self.world_size)


def open_run(
    settings: RunSettings, rank: int, world_size: int, normalize: Normalizer, required: Sequence[str] = REQUIRED_KEYS
) -> OpenedRun:
    """Open the run folder, and read the corpus and the initial model.

    Args:
        settings: settings of the run.
        rank, world_size: rank of this process, and number of processes.
        normalize: the text normaliser.
        required: keys that the lines of training and validation manifests must have; an absent `text` is empty.
    """
    run_dir, first = Path(settings.run_dir), rank == 0
    if first:
        prepare_if_absent(settings.corpus)
        folder.open_run_dir(run_dir)
    resume = find_resume(run_dir / CHECKPOINTS)
    cache = IndexCache(settings.data.index_dir)
    read = partial(cache.utterances, required=required)
    corpus = read_corpus(settings.corpus, normalize, read, cache.with_known_ids)
    corpus.check_shards()
    if resume is None and first:
        corpus.check_audio()  # not on resume, because a run skips files that disappear during training
        folder.begin_anew(run_dir)
    return OpenedRun(settings, rank, world_size, resume, corpus, start_of(settings.init))


def prepare(
    settings: RunSettings, rank: int, world_size: int, find_batch_seconds: "FindBatchSeconds | None"
) -> Prepared:
    """Open the run folder, read the corpus, and fit tokenizer and features.

    The first process stores the fitted files. The other processes must call this function afterwards, to load them.

    Args:
        settings: settings of the run; the result has a number for `data.batch_seconds=auto`.
        rank: rank of this process.
        world_size: number of processes.
        find_batch_seconds: finds this number in the first process of a new run; None: `auto` is refused.
    """
    components = settings.components
    check_attachable(components)  # checked before training: some kinds of language model cannot be in a bundle
    run = open_run(settings, rank, world_size, get_normalizer(components["normalizer"]))
    corpus, start = run.corpus, run.start
    tokenizer, features, labels = folder.fitted_front_end(settings, corpus, rank == 0, start)
    files = fitted_files(tokenizer, features, labels)
    augmentation = build_augmentation(components, features.sample_rate)
    if settings.data.plan.batches.is_auto:
        if run.resume is None and rank == 0:
            if find_batch_seconds is None:
                raise InputError("data.batch_seconds must be a number, because asr/apps/doctor is absent; got auto.")
            model = build_model(components, tokenizer, features, labels)
            found = find_batch_seconds(settings, corpus.train, model, training_counts(settings, corpus, model))
        else:
            stored = run.resume.run.settings if run.resume else folder.read_config(Path(settings.run_dir))
            found = float(stored["data"]["batch_seconds"])
        logger.info("data.batch_seconds=auto: %g", found)
        settings = settings.with_batch_seconds(found).with_accumulation()
    if settings.data.step_seconds is not None and rank == 0:
        logger.info(settings.step_size)
    state = replace(run, settings=settings).enter(files, augmentation)
    base = base_config(start.fingerprint, start.source) if start and ADAPTER in components else None
    extra = checkpoint_extra(
        {**components, "tokenizer": _as_fitted(components["tokenizer"], tokenizer)}, files, base=base
    )
    return Prepared(settings, state, extra, corpus, features, augmentation, start, tokenizer, labels)


def _as_fitted(chosen: Mapping[str, Any], tokenizer: "Tokenizer") -> dict[str, Any]:
    """Return the settings of a tokenizer with its size after an extension."""
    return {**chosen, **({"vocab_size": tokenizer.vocab_size} if "vocab_size" in chosen else {})}


def check_base(model: nn.Module, own: frozenset[str], base: Mapping[str, Tensor], source: str) -> None:
    """Check that all tensors except `own` equal the base's, so that base and checkpoint together make up the model.

    Args:
        model: the adapted model, with the weights of its base.
        own: names from `own_tensors`.
        base: weights of the base.
        source: name of the base as given by the user.
    """
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


def fingerprint(utterances: Iterable[Utterance], labels: Sequence[str] = ()) -> str:
    """Hash the fields that training uses: id, offset, duration, text and these labels, but not the audio's path."""
    return _fingerprint(
        (each.id, each.offset, each.duration, each.text, *(each.labels.get(name) for name in labels))
        for each in utterances
    )


def stored_fingerprint(utterances: Utterances, cache: IndexCache, normalizer: str, labels: Sequence[str] = ()) -> str:
    """Return the `fingerprint` of utterances, stored in `cache`; it includes these labels, if there are any."""
    if utterances.source is None:
        return fingerprint(utterances, labels)
    probes = [utterances[index].text for index in spread(len(utterances))]
    key = repr(("fingerprint", utterances.source, normalizer, probes, *labels))
    stored = cache.numbers(key, lambda: np.frombuffer(_of_columns(utterances, labels).encode(), dtype=np.uint8))
    return stored.tobytes().decode()


def mixture_of(utterances: Utterances) -> dict[str, str]:
    """Return an entry for fingerprints: the size and the mean repeats of each manifest of a training set.

    The result is {} if each utterance occurs once.
    """
    if all(part.repeats == 1 for part in utterances.parts):
        return {}
    return {"mixture": ", ".join(f"{part.index.num_rows} x {part.repeats:.9g}" for part in utterances.parts)}


def _of_columns(utterances: Utterances, labels: Sequence[str]) -> str:
    offsets = (None if math.isnan(offset) else offset for offset in utterances.offsets.tolist())
    columns = utterances.ids, offsets, utterances.durations.tolist(), utterances.texts
    return _fingerprint(zip(*columns, *map(utterances.label, labels), strict=True))


def _fingerprint(rows: Iterable[tuple[str | float | None, ...]]) -> str:
    digest, number = hashlib.sha256(), 0
    for row in rows:
        digest.update(("\t".join(map(str, row)) + "\n").encode())
        number += 1
    return f"{number} utterances, sha256 {digest.hexdigest()[:16]}"
