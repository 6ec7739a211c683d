"""The longest batch whose training steps fit into the free memory: forecast, then tried."""

import logging
import math
from collections.abc import Callable

import torch

from asr.apps.doctor.memory_trial import MemoryTrial
from asr.apps.doctor.trial import device_of, free_bytes, largest_batch, padded_seconds
from asr.base.settings.conf import default_settings
from asr.core import build
from asr.core.data.batch_plan import LESS_MEMORY
from asr.core.data.epoch_plan import EpochPlan
from asr.core.data.position import start_of_epoch
from asr.core.data.seeds import derive_seed
from asr.core.data.token_counts import TokenCounts
from asr.core.data.training_set import TrainingSet
from asr.core.data.utterances import Utterances
from asr.core.recognition.model import Model
from asr.core.run.settings import RunSettings
from asr.errors import InputError

SHARE = 0.85  # of the free memory; the rest is for what a trial does not include
SMALLER, LARGER = 0.75, 1.5  # factors from one trial to the next
MAX_TRIALS = 8
MIN_STEPS = 10  # in an epoch
MAX_SECONDS = 200.0  # with the default learning rate, which suits small batches

logger = logging.getLogger(__name__)


def fitting_batch_seconds(
    settings: RunSettings, utterances: Utterances, model: Model, counts: TokenCounts | None = None
) -> float:
    """Return the longest `data.batch_seconds` whose training steps fit into the device's free memory.

    The length of the settings is the upper bound; with `auto`, an epoch has at least MIN_STEPS steps, and with the
    default learning rate a batch has at most MAX_SECONDS. One process takes the steps, also for a run with several.

    Args:
        settings: settings of the run.
        utterances: utterances to train on.
        model: model of the run; it is unusable afterwards.
        counts: token counts of the utterances; None: they are counted.
    """
    batches = _Batches(settings, utterances, model, counts)
    least, most = batches.bounds()
    logger.info("looking for the longest batch of %g to %g s that fits into the memory", least, most)
    return longest(batches.fit, max(least, batches.forecast(most)), least, most)


def longest(fit: Callable[[float], bool], start: float, least: float, most: float) -> float:
    """Return a length of batches that fit, in seconds; 4/3 of it does not fit, is above `most`, or trials have run out.

    Args:
        fit: tries batches of this length; it is called at most MAX_TRIALS times.
        start: length of the first trial.
        least: the shortest useful length.
        most: the greatest length.
    """
    fitting, failed, seconds = 0.0, math.inf, start
    for left in reversed(range(MAX_TRIALS)):
        if fit(seconds):
            fitting = seconds
        else:
            failed = seconds
        following = LARGER * fitting if failed == math.inf else SMALLER * failed
        seconds = min(most, max(least, round(following, 1)))
        if left == 1 and not fitting:
            seconds = least
        if not fitting < seconds < failed:
            break
    if not fitting:
        must = f"batches of {least:g} s, the length of the longest utterance, must fit into {SHARE:.0%} of the free"
        raise InputError(f"{must} memory; they do not. {LESS_MEMORY}, or take a smaller model.")
    return fitting


class _Batches:
    """The largest batches of a run, by `data.batch_seconds`; the arguments are those of `fitting_batch_seconds`."""

    def __init__(self, settings: RunSettings, utterances: Utterances, model: Model, counts: TokenCounts | None) -> None:
        self._settings, self._utterances, self._counts = settings, utterances, counts
        self._features, self._reference = model.features, model.reference
        self._augmentation = build.build_augmentation(settings.components, model.features.sample_rate)
        self._processes = settings.trainer.num_processes()[0]
        self._noise = torch.Generator().manual_seed(derive_seed(settings.seed, "memory"))
        device = device_of(settings)
        self._trial = MemoryTrial(
            model,
            device,
            SHARE * free_bytes(device),
            settings.components,
            settings.plugins,
            settings.trainer.precision,
            average=settings.ema.decay is not None,
            num_threads=settings.num_threads,
        )

    def bounds(self) -> tuple[float, float]:
        """Return the length of the longest utterance, and the greatest length of a batch, in seconds."""
        settings, added = self._settings, self._augmentation.max_added_seconds
        views = self._reference.views
        training_set = self._training_set(views * (settings.data.plan.selection.max_seconds + added))
        utterance = views * (float(training_set.utterances.durations.max()) + added)
        least = math.ceil(10 * utterance) / 10
        if not settings.data.plan.batches.is_auto:
            most = settings.data.plan.batches.seconds
            return min(least, most), most
        audio = 3600 * views * sum(training_set.epoch_hours.values())
        most = audio / (MIN_STEPS * self._processes * settings.trainer.accumulate_grad_batches)
        optimizer = settings.components["optimizer"]
        if optimizer.get("lr") == default_settings("optimizer", optimizer["name"]).get("lr"):
            most = min(most, MAX_SECONDS)
        return least, max(least, math.floor(10 * most) / 10)

    def _training_set(self, batch_seconds: float) -> TrainingSet:
        settings, augmentation = self._settings.with_batch_seconds(batch_seconds), self._augmentation
        of_plan = augmentation.speed, settings.seed, settings.data.plan, augmentation.max_added_seconds
        return TrainingSet(self._utterances, self._features, self._reference, *of_plan, self._counts)

    def _plan(self, training_set: TrainingSet) -> EpochPlan:
        return training_set.epoch(start_of_epoch(0, self._processes))

    def forecast(self, most: float) -> float:
        """Forecast the longest batch that fits, up to `most` seconds."""
        training_set = self._training_set(most)
        items = largest_batch(self._plan(training_set), training_set)
        numbers = {min(2**power, len(items)) for power in range(len(items).bit_length() + 1)}
        batches = {number: training_set.made_up(items[:number], self._noise) for number in numbers}
        return round(most * self._trial.fitting_share(batches), 1)

    def fit(self, seconds: float) -> bool:
        """Return whether optimizer steps on the largest batches fit, after they were tried."""
        training_set = self._training_set(seconds)
        plan = self._plan(training_set)
        largest = [plan.items(step, int(padded_seconds(plan)[step].argmax())) for step in plan.largest()]
        fits = self._trial.fits([training_set.made_up(items, self._noise) for items in largest])
        logger.info("batches of %g s %s", seconds, "fit" if fits else "do not fit")
        return fits
