"""Training of a recogniser: losses of its head, word errors on the validation set, a bundle that is tested."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from asr.base.storage.session import configure
from asr.core import build
from asr.core.data.batch import Batch
from asr.core.data.batch_plan import LESS_MEMORY
from asr.core.data.corpus import Corpus
from asr.core.data.dataset import Augmentation
from asr.core.data.selection import check_dropped
from asr.core.data.training_set import TrainingSet
from asr.core.evaluation.result import Evaluation
from asr.core.objective.parts import WER, Losses, Measure, Rate, TrainedData
from asr.core.objective.word_validation import RecognitionValidation
from asr.core.recognition.recognizer import Recognizer
from asr.core.run.outcome import finish
from asr.core.run.preparation import FindBatchSeconds, Prepared, prepare, training_counts
from asr.core.run.settings import RunSettings
from asr.core.run.validation_samples import SamplesFile
from asr.interfaces import Features, Metric


@dataclass(frozen=True)
class SpeechToTrain(TrainedData):
    """Speech to train on.

    Args:
        corpus: the corpus; with `debug.same_utterances`, a few utterances of it.
        augmentation: augmentation of the training utterances.
    """

    train: TrainingSet
    corpus: Corpus
    augmentation: Augmentation


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
        self.loss_names = model.head.loss_names
        self.rate = Rate(
            "audio_seconds", "s of audio", model.features.hop / model.features.sample_rate / model.head.views
        )
        self.blocks = [block.module for _, block in model.encoder.named_blocks()]
        self.depths = model.depths
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

    measure: ClassVar[Measure] = WER
    sections: ClassVar[Sequence[str]] = ("normalizer", "features", "tokenizer", "encoder", "decode", "head")
    optional: ClassVar[Sequence[str]] = ("augment", "prompt", "adapter", "metric")

    def check(self, components: Mapping[str, Any]) -> None:
        """Check the settings of all components before a training begins."""
        build.check_components(components)

    def prepare(
        self, settings: RunSettings, rank: int, world_size: int, find_batch_seconds: FindBatchSeconds | None
    ) -> Prepared:
        """Open the run folder, read the corpus, and fit tokenizer and features."""
        configure(settings.data.storage)
        return prepare(settings, rank, world_size, find_batch_seconds)

    def build(self, prepared: Prepared) -> tuple[TrainableRecognizer, SpeechToTrain]:
        """Make the recogniser, with the weights of the initial model, and the training set."""
        settings, corpus = prepared.settings, prepared.corpus
        components = settings.components
        recognizer = build.build_recognizer(components, prepared.tokenizer, prepared.features, prepared.labels)
        model = recognizer.model
        own_tensors = prepared.initialize(model)
        counts = training_counts(settings, corpus, model)
        augmentation = prepared.augmentation
        of_plan = augmentation.speed, settings.seed, settings.data.plan, augmentation.max_added_seconds
        train = TrainingSet(corpus.train, prepared.features, model.reference, *of_plan, counts)
        check_dropped(train.dropped, train.num_given, settings.data.max_dropped_fraction)
        if settings.debug.same_utterances:
            corpus = corpus.only(train.utterances)
        prepared.describe(model, corpus, train)
        samples, manifests = prepared.validation_samples(corpus.valid), corpus.valid.manifests
        metrics = build.build_metrics(components)
        trainable = TrainableRecognizer(recognizer, samples, manifests, metrics, own_tensors)
        return trainable, SpeechToTrain(train, settings.data.max_bad_fraction * len(train), corpus, augmentation)

    def finish(self, prepared: Prepared, data: SpeechToTrain, device: Any) -> dict[str, Evaluation]:
        """Write the bundle, test it, and compare it with the initial model."""
        valid_words = sum(len(text.split()) for text in data.corpus.valid.texts)
        tests = data.corpus.all_tests
        return finish(prepared.state.run_dir, prepared.settings, tests, device, prepared.start, valid_words)


def zero_loss(encoder_out: Tensor, head: nn.Module) -> Tensor:
    """Return a zero, (1,), that depends on encoder_out (1, T', D) and on every trained weight of a head."""
    idle = [weight.sum() for weight in head.parameters() if weight.requires_grad]
    return (encoder_out.sum(dim=(1, 2)) + sum(idle)) * 0.0


def too_large(batch: Batch | None, features: Features) -> str:
    """Return the error message for a batch that does not fit into memory; None: it is unknown."""
    size = "a batch that does not fit"
    if batch is not None:
        seconds = batch.features.shape[1] * features.hop / features.sample_rate
        views = len(batch.features) // max(1, len(batch))
        frames = f"{f'{views} views x ' if views > 1 else ''}{batch.features.shape[1]} frames"
        sums = f"{seconds:.1f} s each, {len(batch) * seconds:.0f} s in all, {batch.tokens.shape[1]} tokens"
        size = f"{len(batch)} utterances x {frames} ({sums})"
    return f"a batch must fit into memory; got {size}. {LESS_MEMORY}."
