"""What objectives on speech without texts share: preparation, training set, and a bundle with an encoder."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from asr.base.storage.session import configure
from asr.base.system.files import write_whole_text
from asr.core import build
from asr.core.checkpoint.bundle import ENCODER_KEYS
from asr.core.checkpoint.load import checkpoint_extra
from asr.core.checkpoint.saved import CHECKPOINTS, by_score, kept_checkpoints
from asr.core.data.dataset import Reference
from asr.core.data.manifest import REQUIRED_KEYS
from asr.core.data.token_counts import TokenCounts
from asr.core.data.training_set import TrainingSet
from asr.core.objective.parts import Measure
from asr.core.objective.recognition import SpeechToTrain, zero_loss
from asr.core.recognition.depths import depths_in
from asr.core.run.folder import load_or_fit, statistics_of
from asr.core.run.names import RESULTS
from asr.core.run.outcome import write_run_bundle
from asr.core.run.preparation import PreparedSpeech, open_run
from asr.core.run.settings import RunSettings
from asr.errors import InputError
from asr.interfaces import Encoder, Features

logger = logging.getLogger(__name__)


class WithoutTexts:
    """Base of objectives on speech without texts; a subclass has `measure`, and `build` makes the model.

    The bundle has features and encoder, from which asr.train starts with `init.from`.
    """

    measure: ClassVar[Measure]
    sections: ClassVar[Sequence[str]] = ("features", "encoder")
    optional: ClassVar[Sequence[str]] = ("augment",)

    def check(self, components: Mapping[str, Any]) -> None:
        """Check the settings of all components before a training begins."""
        features = build.build_features(components)
        model = nn.Module()
        with torch.device("meta"):
            encoder: Any = build.component("encoder", components["encoder"])(features.dim)
        model.encoder = encoder
        build.build_augmentation(components, features.sample_rate)
        build.build_schedule(components)
        build.check_optimizer(components, model, depths_in(model, encoder))

    def prepare(self, settings: RunSettings, rank: int, world_size: int, find_batch_seconds: Any) -> PreparedSpeech:
        """Open the run folder, read the corpus, whose texts may be absent, and fit the features."""
        configure(settings.data.storage)
        components = settings.components
        if settings.data.plan.batches.is_auto:
            must = f"data.batch_seconds must be a number with objective={components['objective']['name']}"
            raise InputError(f"{must}, because only batches of a recogniser are tried; got auto. Give 100 or more.")
        required = [key for key in REQUIRED_KEYS if key != "text"]
        run = open_run(settings, rank, world_size, str, required)
        features = build.build_features(components)
        parts = {"features": statistics_of(features, settings, run.corpus.train)}
        files = load_or_fit(settings, parts, rank == 0, run.start)
        augmentation = build.build_augmentation(components, features.sample_rate)
        state = run.enter(files, augmentation)
        extra = checkpoint_extra(components, files, ENCODER_KEYS)
        return PreparedSpeech(settings, state, extra, run.corpus, features, augmentation, run.start)

    def finish(self, prepared: PreparedSpeech, data: SpeechToTrain, device: Any) -> dict[str, Any]:
        """Write the bundle."""
        run_dir = prepared.state.run_dir
        best = by_score(kept_checkpoints(run_dir / CHECKPOINTS))
        score = best[0].score if best else None
        facts = {
            "pre-training": f"{type(self).__name__}, without texts",
            f"best validation {self.measure.title}": "not measured" if score is None else self.measure.write(score, 2),
        }
        use = "Train a recogniser from it with `python -m asr.train init.from=FOLDER`, where FOLDER is this one.\n"
        write_run_bundle(run_dir, prepared.settings, prepared.start, "An encoder without a head,", use, facts)
        write_whole_text(run_dir / RESULTS, "{}\n")  # shows that nothing is left to test
        return {}


def new_encoder(prepared: PreparedSpeech) -> Encoder:
    """Make the encoder of a run, with new weights."""
    encoder: Encoder = build.component("encoder", prepared.settings.components["encoder"])(prepared.features.dim)
    return encoder


def speech_to_train(
    prepared: PreparedSpeech, model: nn.Module, encoder: Encoder, cells: Callable[[Any], Any] = lambda frames: 0
) -> SpeechToTrain:
    """Load the initial encoder, plan the training set, and log the sizes and the start of the run.

    Args:
        prepared: the run's settings and data.
        model: the model, whose tensors `encoder.*` are those of `encoder`.
        encoder: the encoder.
        cells: returns the number of elements of the model's largest tensor for an utterance with these encoder frames,
            which `data.max_cells` limits.
    """
    settings, corpus, augmentation = prepared.settings, prepared.corpus, prepared.augmentation
    if prepared.start is not None:
        prepared.start.load_encoder(model)
    reference = Reference(_no_tokens, _one_frame, encoder.output_lengths, lambda frames, tokens: cells(frames))
    of_plan = augmentation.speed, settings.seed, settings.data.plan, augmentation.max_added_seconds
    ones = torch.ones(len(corpus.train), dtype=torch.int32)
    train = TrainingSet(corpus.train, prepared.features, reference, *of_plan, TokenCounts(ones, ones))
    if settings.debug.same_utterances:
        corpus = corpus.only(train.utterances)
    parameters, name = sum(parameter.numel() for parameter in model.parameters()), type(encoder).__name__
    logger.info("%s with %s parameters", name, f"{parameters:,}")
    prepared.describe_speech(corpus, train)
    unused = {"corpus.test and corpus.also_test": corpus.all_tests, "debug.max_wer": settings.debug.max_wer}
    if given := [names for names, value in unused.items() if value]:
        logger.info("an encoder without a head has no WER: %s are not used", " and ".join(given))
    trained = {"utterances": len(corpus.train), "hours": corpus.train.hours}
    validated = {"utterances": len(corpus.valid)} if corpus.valid else {}
    prepared.state.record_start(name, {"parameters": parameters}, trained, validated)
    return SpeechToTrain(train, settings.data.max_bad_fraction * len(train), corpus, augmentation)


def idle_step(encoder: Encoder, features: Features, head: nn.Module) -> Tensor:
    """Return a zero, (1,), that depends on every weight of an encoder and of a head after it."""
    device = next(head.parameters()).device
    silence = torch.zeros(1, encoder.stride, features.dim, device=device)
    return zero_loss(encoder(silence, torch.zeros(1, dtype=torch.int64, device=device)).out, head)


def _no_tokens(text: str) -> list[int]:
    return []


def _one_frame(tokens: list[int]) -> int:
    return 1
