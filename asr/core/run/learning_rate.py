"""The learning rate that a schedule plans for a run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asr.base.text.numbers import percent
from asr.core.build import build_schedule
from asr.interfaces import Moment

MAX_RATES = 1_000_000  # in longer runs, the rate is computed for every second step, every third step ...
NEARLY = 0.99  # a rate above this fraction of the peak is the peak


@dataclass(frozen=True)
class PlannedRates:
    """The learning rates of a run, before its first step.

    Args:
        steps: optimizer steps, from 1, at equal distances.
        rates: learning rate of each of these steps.
        peak: learning rate at the schedule's peak (optimizer.lr).
        total_steps: number of optimizer steps of the run.
    """

    steps: range
    rates: list[float]
    peak: float
    total_steps: int

    @property
    def warmup_steps(self) -> int:
        """Number of steps up to the highest rate."""
        return self.steps[self.rates.index(max(self.rates))]

    @property
    def warmup_share(self) -> float:
        """Fraction of the run's steps up to the highest rate."""
        return self.warmup_steps / self.total_steps

    @property
    def reaches_peak(self) -> bool:
        """Whether the highest rate is the schedule's peak."""
        return max(self.rates) >= NEARLY * self.peak

    def __str__(self) -> str:
        steps = f"warm-up {self.warmup_steps:,} of {self.total_steps:,} steps ({percent(self.warmup_share, 0)})"
        rates = f"highest {max(self.rates):.3g}, last {self.rates[-1]:.3g}, sum {sum(self.rates) * self.steps.step:.4g}"
        return f"{steps}, {rates}"


def planned_rates(components: Mapping[str, Any], total_steps: int, steps_per_epoch: int) -> PlannedRates:
    """Compute the learning rates of a run.

    Args:
        components: sections of the run's components.
        total_steps: number of optimizer steps of the run, at least 1.
        steps_per_epoch: number of optimizer steps of an epoch.
    """
    schedule, peak = build_schedule(components), components["optimizer"]["lr"]
    steps = range(1, total_steps + 1, math.ceil(total_steps / MAX_RATES))
    moments = (Moment(step - 1, total_steps, (step - 1) / steps_per_epoch) for step in steps)
    return PlannedRates(steps, [peak * schedule(moment) for moment in moments], peak, total_steps)
