"""Linear warm-up, then cosine decay until the last step."""

import math

from asr.base.settings.rule import Fraction
from asr.components.schedule.warm_up_length import WarmUp, WarmUpFraction, WarmUpSteps
from asr.interfaces import Moment


class Cosine:
    """Cosine annealing.

    *Source*: Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts.

    Args:
        warmup_steps: number of steps until the peak, which is the optimizer's learning rate; None: warmup_fraction.
        warmup_fraction: this number as a fraction of the run's steps; None: warmup_steps.
        final_factor: learning rate at the last step, relative to the peak.
    """

    def __init__(self, *, warmup_steps: WarmUpSteps, warmup_fraction: WarmUpFraction, final_factor: Fraction) -> None:
        self._warm_up = WarmUp(warmup_steps, warmup_fraction)
        self.final_factor = final_factor

    def __call__(self, moment: Moment) -> float:
        """Return the factor by which the learning rate is multiplied."""
        step, total_steps, _ = moment
        warmup_steps = self._warm_up.steps(total_steps)
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        progress = min(1.0, (step + 1 - warmup_steps) / max(1, total_steps - warmup_steps))
        return self.final_factor + (1 - self.final_factor) * 0.5 * (1 + math.cos(math.pi * progress))
