"""What objectives on speech share: their settings, the corpus, the training set's data module, the bundle's card."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from asr.base.storage.session import configure
from asr.base.text.normalize import Normalizer
from asr.core.checkpoint.load import write_bundle
from asr.core.data.batch import Batch
from asr.core.data.batch_plan import LESS_MEMORY
from asr.core.data.corpus import Corpus, prepare_if_absent, read_corpus
from asr.core.data.dataset import Augmentation, Reference
from asr.core.data.fingerprint import fingerprint, mixture_of, stored_fingerprint
from asr.core.data.index_cache import IndexCache
from asr.core.data.manifest import REQUIRED_KEYS
from asr.core.data.token_counts import TokenCounts
from asr.core.data.training_set import TrainingSet
from asr.core.run.initialization import Initialization, with_parts
from asr.core.run.run import Run
from asr.core.run.run_bundle import write_run_bundle
from asr.core.run.settings import RunSettings, read_run_settings, without_unused
from asr.core.training.objective import Built, Trainable
from asr.interfaces import Features

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpeechInputs:
    """What an objective on speech reads before it makes the model.

    Args:
        corpus: corpus to train on.
        features: fitted features.
        augmentation: augmentation of the training utterances.
        start: the initial model; None: random weights.
    """

    corpus: Corpus
    features: Features
    augmentation: Augmentation
    start: Initialization | None


AnyInputs = TypeVar("AnyInputs", bound=SpeechInputs)


def read_settings(resolved: Mapping[str, Any], overrides: Sequence[str]) -> RunSettings:
    """Read the settings of conf/train.yaml; overrides precede the components of the model in `init.from`."""
    return with_parts(read_run_settings(without_unused(resolved, overrides)), overrides)


def open_corpus(run: Run[RunSettings], normalize: Normalizer, required: Sequence[str] = REQUIRED_KEYS) -> Corpus:
    """Read the corpus; a corpus that is absent is prepared.

    Args:
        run: the open run.
        normalize: the text normaliser.
        required: keys that the lines of training and validation manifests must have; an absent `text` is empty.
    """
    settings = run.settings
    configure(settings.data.storage)
    if run.is_first:
        prepare_if_absent(settings.corpus)
    cache = IndexCache(settings.data.index_dir)
    corpus = read_corpus(settings.corpus, normalize, partial(cache.utterances, required=required), cache.with_known_ids)
    corpus.check_shards()
    if run.resume is None and run.is_first:
        corpus.check_audio()  # not on resume, because a run skips files that disappear during training
    run.begin()
    return corpus


def enter(
    run: Run[RunSettings], speech: SpeechInputs, files: Mapping[str, bytes], extra: dict[str, Any]
) -> Run[RunSettings]:
    """Enter a run on speech (`Run.enter`).

    Args:
        run: the open run.
        speech: what it trains on.
        files: files of fitted components, by name.
        extra: what a checkpoint contains in addition to the weights.
    """
    settings, corpus, start = run.settings, speech.corpus, speech.start
    cache = IndexCache(settings.data.index_dir)
    normalizer = repr(settings.components.get("normalizer"))
    manifests = {
        "train": stored_fingerprint(corpus.train, cache, normalizer, settings.corpus.labels),
        "valid": stored_fingerprint(corpus.valid, cache, normalizer, settings.corpus.labels),
        **mixture_of(corpus.train),
        **{name: fingerprint(recordings.utterances) for name, recordings in speech.augmentation.recordings.items()},
    }
    return run.enter(manifests, {**files, **({"init.from": start.fingerprint} if start else {})}, extra)


def training_set(settings: RunSettings, speech: SpeechInputs, reference: Reference, counts: TokenCounts) -> TrainingSet:
    """Plan the training set.

    Args:
        settings: settings of the run.
        speech: what the run trains on.
        reference: converts a text to tokens.
        counts: token counts of the utterances.
    """
    augmentation = speech.augmentation
    of_plan = augmentation.speed, settings.seed, settings.data.plan, augmentation.max_added_seconds
    return TrainingSet(speech.corpus.train, speech.features, reference, *of_plan, counts)


def describe(whole: Corpus, used: Corpus, train: TrainingSet) -> None:
    """Log the size of the corpus.

    Args:
        whole: the corpus.
        used: the utterances in use; with `debug.same_utterances`, a few utterances of the manifests.
        train: training set of `used`.
    """
    logger.info("%d training utterances in the manifests, %.2f h", len(whole.train), whole.train.hours)
    if used is not whole:
        size = f"{len(used.train)} utterances, {used.train.hours:.2f} h"
        logger.info("debug.same_utterances: training and validating on %s", size)
    else:
        logger.info("%d validation utterances", len(used.valid))
    for line in train.describe_mixture():
        logger.info("%s", line.strip())
    used.note_conversion(train.features.sample_rate)


def built(
    run: Run[RunSettings],
    speech: AnyInputs,
    trainable: Trainable,
    train: TrainingSet,
    by_frequency: Callable[[], float | None] = lambda: None,
) -> Built[AnyInputs]:
    """Make the data module and the callbacks of a training on speech.

    Args:
        run: the run.
        speech: what it trains on, with the utterances in use.
        trainable: the model with its losses.
        train: the training set.
        by_frequency: returns the loss per token of a model that knows only how frequent each token is; None: unknown.
    """
    from asr.core.training.callbacks import speech_callbacks  # Lightning, which only a training needs
    from asr.core.training.data_module import SpeechData

    settings, valid = run.settings, speech.corpus.valid
    loading = settings.num_workers, settings.data.features_on, settings.data.max_bad_fraction * len(train)
    data = SpeechData(train, valid, speech.augmentation, run.position, *loading)
    validates_first = speech.start is not None and len(valid) > 0
    return Built(trainable, data, speech_callbacks(run, trainable.model, by_frequency, validates_first), speech)


def write_speech_bundle(
    settings: RunSettings, start: Initialization | None, what: str, use: str, facts: Mapping[str, str]
) -> Path:
    """Write the bundle and the model card of a run on speech.

    Args:
        settings: settings of the run.
        start: the initial model; None: random weights.
        what: kind of the model, for the card.
        use: how the bundle is used, for the card.
        facts: further rows of the card's table.
    """
    components, share = settings.components, settings.init.share
    rows = {
        "corpus": settings.corpus.name,
        "started from": start.source if start else "random weights",
        "encoder": components["encoder"]["name"],
        "sample rate": f"{components['features']['sample_rate']} Hz; audio with another sample rate is resampled",
    }
    facts = {**({"share of the initial model in each weight": f"{share:g}"} if share else {}), **facts}
    initial = None if start is None else start.bundle
    write = partial(write_bundle, decode=components.get("decode"), start=initial, share=share)
    return write_run_bundle(settings, write, what, rows, facts, use, (initial.card or "") if initial else "")


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
