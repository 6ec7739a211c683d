"""What objectives on speech without texts share: preparation, training set, and a bundle with an encoder."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from asr.base.system.files import write_whole_text
from asr.core import build
from asr.core.checkpoint.bundle import ENCODER_KEYS
from asr.core.checkpoint.load import checkpoint_extra
from asr.core.data.dataset import Reference
from asr.core.data.manifest import REQUIRED_KEYS
from asr.core.data.token_counts import TokenCounts
from asr.core.objective.speech import (
    SpeechInputs,
    built,
    describe,
    enter,
    open_corpus,
    read_settings,
    too_large,
    training_set,
    write_speech_bundle,
    zero_loss,
)
from asr.core.recognition.depths import depths_in
from asr.core.run.folder import load_or_fit, statistics_of
from asr.core.run.initialization import start_of
from asr.core.run.names import RESULTS
from asr.core.run.run import Run
from asr.core.run.run_bundle import best_score
from asr.core.run.settings import RunSettings
from asr.core.training.objective import Built, FindBatchSeconds, Measure, Rate, Trainable
from asr.errors import InputError
from asr.interfaces import Encoder, Features

logger = logging.getLogger(__name__)


class EncoderWithOutput(nn.Module):
    """An encoder with features and an output layer. Its encoder's tensors have the names that `init.from` reads.

    Args:
        features: fitted features.
        encoder: the encoder to train.
        output_dim: dimension of the output layer.
    """

    def __init__(self, features: Features, encoder: Encoder, output_dim: int) -> None:
        super().__init__()
        self.features = features
        self.encoder = encoder
        self.output = nn.Linear(encoder.output_dim, output_dim)


Net = TypeVar("Net", bound=EncoderWithOutput)


class TrainableEncoder(Generic[Net]):
    """Base of an encoder's losses; a subclass has `losses` and `validation` (`Trainable`).

    Args:
        model: the model to train.
    """

    loss_names: Sequence[str] = ()
    own_tensors: Collection[str] | None = None

    def __init__(self, model: Net) -> None:
        self.model = model
        self.rate = Rate("audio_seconds", "s of audio", model.features.hop / model.features.sample_rate)
        self.blocks: Sequence[nn.Module] = [block.module for _, block in model.encoder.named_blocks()]
        self.depths: Mapping[str, int] = depths_in(model, model.encoder)

    def idle(self) -> Tensor:
        """Return the zero loss, (1,), of a batch without utterances, which depends on every weight."""
        encoder, output = self.model.encoder, self.model.output
        silence = torch.zeros(1, encoder.stride, self.model.features.dim, device=output.weight.device)
        return zero_loss(encoder(silence, torch.zeros(1, dtype=torch.int64, device=silence.device)).out, output)

    def too_large(self, batch: Any) -> str:
        """Return the error message for a batch that does not fit into memory."""
        return too_large(batch, self.model.features)


class WithoutTexts:
    """Base of objectives on speech without texts; a subclass has `measure` and `trainable`.

    The bundle has features and encoder, from which asr.train starts with `init.from`.
    """

    command: ClassVar[str] = "train"
    measure: ClassVar[Measure]
    sections: ClassVar[Sequence[str]] = ("features", "encoder")
    optional: ClassVar[Sequence[str]] = ("augment",)

    def trainable(self, features: Features, encoder: Encoder, seed: int) -> Trainable:
        """Make the model, whose tensors `encoder.*` are those of the encoder, with its losses.

        Args:
            features: fitted features.
            encoder: new encoder.
            seed: seed of the run.
        """
        raise NotImplementedError

    def cells(self, frames: Any) -> Any:
        """Return the number of elements of the model's largest tensor for an utterance with these encoder frames.

        `data.max_cells` limits it.
        """
        return 0

    read = staticmethod(read_settings)

    def check(self, components: Mapping[str, Any]) -> None:
        """Check the settings of all components before a training begins."""
        features = build.build_features(components)
        model = nn.Module()
        with torch.device("meta"):
            encoder: Any = build.component("encoder", components["encoder"])(features.dim)
        model.encoder = encoder
        build.build_augmentation(components, features.sample_rate)
        build.check_training(components, model, depths_in(model, encoder))

    def prepare(
        self, run: Run[RunSettings], find_batch_seconds: FindBatchSeconds | None
    ) -> tuple[Run[RunSettings], SpeechInputs]:
        """Read the corpus, whose texts may be absent, and fit the features."""
        settings, components = run.settings, run.settings.components
        if settings.data.plan.batches.is_auto:
            must = f"data.batch_seconds must be a number with objective={components['objective']['name']}"
            raise InputError(f"{must}, because only batches of a recogniser are tried; got auto. Give 100 or more.")
        corpus = open_corpus(run, str, [key for key in REQUIRED_KEYS if key != "text"])
        start = start_of(settings.init)
        features = build.build_features(components)
        parts = {"features": statistics_of(features, settings, corpus.train)}
        files = load_or_fit(settings, parts, run.is_first, start)
        augmentation = build.build_augmentation(components, features.sample_rate)
        speech = SpeechInputs(corpus, features, augmentation, start)
        return enter(run, speech, files, checkpoint_extra(components, files, ENCODER_KEYS)), speech

    def build(self, run: Run[RunSettings], speech: SpeechInputs) -> Built[SpeechInputs]:
        """Make the model, with the encoder of the initial model, and the training set."""
        settings, whole, features = run.settings, speech.corpus, speech.features
        encoder: Encoder = build.component("encoder", settings.components["encoder"])(features.dim)
        trainable = self.trainable(features, encoder, settings.seed)
        if speech.start is not None:
            speech.start.load_encoder(trainable.model)
        cells = self.cells
        reference = Reference(_no_tokens, _one_frame, encoder.output_lengths, lambda frames, tokens: cells(frames))
        ones = torch.ones(len(whole.train), dtype=torch.int32)
        train = training_set(settings, speech, reference, TokenCounts(ones, ones))
        if settings.debug.same_utterances:
            speech = replace(speech, corpus=whole.only(train.utterances))
        corpus, name = speech.corpus, type(encoder).__name__
        parameters = sum(parameter.numel() for parameter in trainable.model.parameters())
        logger.info("%s with %s parameters", name, f"{parameters:,}")
        describe(whole, corpus, train)
        unused = {"corpus.test and corpus.also_test": corpus.all_tests, "debug.max_wer": settings.debug.max_wer}
        if given := [names for names, value in unused.items() if value]:
            logger.info("an encoder without a head has no WER: %s are not used", " and ".join(given))
        trained = {"utterances": len(corpus.train), "hours": corpus.train.hours}
        validated = {"utterances": len(corpus.valid)} if corpus.valid else {}
        run.record_start(name, {"parameters": parameters}, trained, validated)
        return built(run, speech, trainable, train)

    def finish(self, run: Run[RunSettings], speech: SpeechInputs, device: torch.device) -> None:
        """Write the bundle."""
        score = best_score(run.dir)
        facts = {
            "pre-training": f"{type(self).__name__}, without texts",
            f"best validation {self.measure.title}": "not measured" if score is None else self.measure.write(score, 2),
        }
        use = "Train a recogniser from it with `python -m asr.train init.from=FOLDER`, where FOLDER is this one.\n"
        write_speech_bundle(run.settings, speech.start, "An encoder without a head,", use, facts)
        write_whole_text(run.dir / RESULTS, "{}\n")  # shows that nothing is left to test


def _no_tokens(text: str) -> list[int]:
    return []


def _one_frame(tokens: list[int]) -> int:
    return 1
