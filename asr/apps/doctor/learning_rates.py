"""A learning-rate range test: a few steps with a rising learning rate show which rates suit a run.

*Source*: Smith 2017, arXiv:1506.01186, section 3.3.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

from torch.nn.utils import clip_grad_norm_

from asr.apps.doctor.finding import OnProgress
from asr.apps.doctor.planned import planned
from asr.apps.doctor.trial import autocast, device_of
from asr.core import build
from asr.core.data.batch import Batch, collate
from asr.core.data.dataset import SpeechDataset
from asr.core.data.manifest import Utterance
from asr.core.data.position import start_of_epoch
from asr.core.recognition.model import Model
from asr.core.run.initialization import start_of
from asr.core.run.settings import RunSettings
from asr.errors import InputError

NUM_STEPS = 100
LOWEST, HIGHEST = 1e-5, 1e-1  # learning rate of the first and of the last step
OF_PLANNED = 30  # smallest multiple of the planned rate in the last step, so that this rate may be suggested
SMOOTHING = 0.9  # decay of the moving average of the loss
DIVERGED = 1.5  # a smoothed loss above this multiple of the lowest one ends the test


@dataclass(frozen=True)
class RangeTest:
    """Losses of optimizer steps with rising learning rates.

    Args:
        rates: value of optimizer.lr in each step; groups of weights with other rates have theirs in proportion.
        losses: loss per token before each step, as a moving average.
    """

    rates: list[float]
    losses: list[float]

    @property
    def suggestion(self) -> float:
        """A tenth of the rate with the lowest loss: higher rates stop the loss from falling."""
        return self.rates[self.losses.index(min(self.losses))] / 10

    def summary(self, planned: float) -> str:
        """Describe the result in one line, next to the planned peak rate."""
        tried = f"{len(self.rates)} steps with rates from {self.rates[0]:.0e} to {self.rates[-1]:.0e}"
        return f"{tried}: optimizer.lr={self.suggestion:.1e} is suggested, {planned:.1e} is planned"


def range_test(
    settings: RunSettings, utterances: Sequence[Utterance], model: Model, on_progress: OnProgress
) -> RangeTest:
    """Train with a learning rate that rises exponentially.

    A step has one batch of the run, without accumulation. The test ends early when the loss diverges.

    Args:
        settings: settings of the training run.
        utterances: utterances to train on; the model's tokenizer must cover their texts.
        model: newly initialised model; it is unusable afterwards.
        on_progress: called after each step.
    """
    start = start_of(settings.init)
    if start is not None:
        start.load(model)
    device = device_of(settings)
    model.to(device).train()
    optimizer = build.build_optimizer(settings.components, model, model.depths)
    of_one = {**settings.components, "optimizer": {**settings.components["optimizer"], "lr": 1.0}}
    ratios = [group["lr"] for group in build.build_optimizer(of_one, model, model.depths).param_groups]
    highest = max(HIGHEST, OF_PLANNED * settings.components["optimizer"]["lr"])
    rates: list[float] = []
    losses: list[float] = []
    mean = 0.0
    for step, batch in enumerate(islice(_batches(settings, utterances, model), NUM_STEPS)):
        rate = LOWEST * (highest / LOWEST) ** (step / (NUM_STEPS - 1))
        for group, ratio in zip(optimizer.param_groups, ratios, strict=True):
            group["lr"] = rate * ratio
        on_device = batch.to(device)
        with autocast(settings):
            encoded = model.encode(on_device)
            summed = model.head.losses(encoded, on_device.targets)["loss"].sum()
        loss = summed / on_device.token_lengths.sum().clamp(min=1)
        mean = SMOOTHING * mean + (1 - SMOOTHING) * float(loss.detach())
        smoothed = mean / (1 - SMOOTHING ** (step + 1))
        if not math.isfinite(smoothed) or smoothed > DIVERGED * min([*losses, smoothed]):
            break
        rates.append(rate)
        losses.append(smoothed)
        loss.backward()
        clip_grad_norm_(model.parameters(), settings.trainer.gradient_clip_val or math.inf)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        on_progress(1)
    if not rates:
        raise InputError("the loss of the first batch of a learning-rate range test must be finite; it is not.")
    return RangeTest(rates, losses)


def _batches(settings: RunSettings, utterances: Sequence[Utterance], model: Model) -> Iterator[Batch]:
    """Yield batches with at least one utterance, from the first epoch that is not sorted on."""
    training_set, augmentation, *_ = planned(settings, utterances, model)
    dataset = SpeechDataset(training_set.utterances, model.features, model.reference, augmentation, settings.seed)
    for epoch in count(settings.data.plan.order.sorted_epochs):
        plan = training_set.epoch(start_of_epoch(epoch, 1))
        for step in range(len(plan)):
            examples = [dataset[item] for item in plan.items(step, 0)]
            batch = collate(examples, model.labels)
            if len(batch):
                yield batch
