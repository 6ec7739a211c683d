"""Linear warm-up, then cosine decay until the last step."""

import math
from typing import Annotated

from asr.interfaces import Moment
from asr.settings.rule import Fraction, whole


class Cosine:
    """Cosine annealing.

    *Source*: Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts.

    Args:
        warmup_steps: number of steps until the peak, which is the optimizer's learning rate.
        final_factor: learning rate at the last step, relative to the peak.
    """

    def __init__(self, *, warmup_steps: Annotated[int, whole(0)], final_factor: Fraction) -> None:
        self.warmup_steps = max(1, warmup_steps)
        self.final_factor = final_factor

    def __call__(self, moment: Moment) -> float:
        """Return the factor by which the learning rate is multiplied."""
        step, total_steps, _ = moment
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = min(1.0, (step + 1 - self.warmup_steps) / max(1, total_steps - self.warmup_steps))
        return self.final_factor + (1 - self.final_factor) * 0.5 * (1 + math.cos(math.pi * progress))
