"""The speech of a training run, as asr.train prepares it: tokenizer, features, and the batches of its epochs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from hydra import compose
from hydra.errors import HydraException
from omegaconf import OmegaConf

from asr.base.text.normalize import get_normalizer
from asr.core import build
from asr.core.data.corpus import Corpus, prepare_if_absent, read_corpus
from asr.core.data.dataset import Augmentation, Item
from asr.core.data.index_cache import IndexCache
from asr.core.data.position import start_of_epoch
from asr.core.data.training_set import TrainingSet
from asr.core.recognition.model import Model
from asr.core.run.folder import fitted_front_end
from asr.core.run.initialization import start_of, with_parts
from asr.core.run.settings import RunSettings, read_run_settings
from asr.core.training.hydra_command import initialized_hydra
from asr.errors import InputError
from asr.interfaces import Features, Tokenizer


def composed(overrides: Sequence[str]) -> RunSettings:
    """Compose the settings of a run as asr.train does.

    Raises:
        InputError: an override is invalid.
    """
    try:
        with initialized_hydra():
            config = compose("train", overrides=list(overrides))
    except HydraException as error:
        raise InputError(f"{' '.join(overrides)}: {str(error).splitlines()[0]}") from None
    resolved: dict[str, Any] = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    settings = with_parts(read_run_settings(resolved), overrides)
    build.check_components(settings.components)
    return settings


class TrainingSpeech(NamedTuple):
    """A corpus with fitted tokenizer and features, a model with random weights, and the batch plan."""

    corpus: Corpus
    tokenizer: Tokenizer
    features: Features
    model: Model
    augmentation: Augmentation
    training_set: TrainingSet

    def batches(self, epoch: int) -> list[list[Item]]:
        """Plan the batches of an epoch."""
        plan = self.training_set.epoch(start_of_epoch(epoch, 1))
        return [plan.items(step, 0) for step in range(len(plan))]


def training_speech(settings: RunSettings) -> TrainingSpeech:
    """Prepare the speech of a run.

    Raises:
        InputError: a setting is invalid, or no utterance is left to train on.
    """
    components, seed = settings.components, settings.seed
    prepare_if_absent(settings.corpus)
    corpus = read_corpus(settings.corpus, get_normalizer(components["normalizer"]), IndexCache().utterances)
    tokenizer, features, labels = fitted_front_end(settings, corpus, False, start_of(settings.init))
    model = build.build_model(components, tokenizer, features, labels)
    augmentation = build.build_augmentation(components, features.sample_rate)
    plan = augmentation.speed, seed, settings.data.plan, augmentation.max_added_seconds
    training_set = TrainingSet(corpus.train, features, model.reference, *plan)
    return TrainingSpeech(corpus, tokenizer, features, model, augmentation, training_set)
