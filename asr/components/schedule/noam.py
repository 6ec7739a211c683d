"""Linear warm-up, then decay with the inverse square root of the step."""

from asr.components.schedule.warm_up_length import WarmUp, WarmUpFraction, WarmUpSteps
from asr.interfaces import Moment


class Noam:
    """The Transformer's schedule, scaled so that the peak is the optimizer's learning rate.

    *Source*: Vaswani et al. 2017, arXiv:1706.03762, section 5.3.

    Args:
        warmup_steps: number of steps until the peak; None: warmup_fraction.
        warmup_fraction: this number as a fraction of the run's steps; None: warmup_steps.
    """

    def __init__(self, *, warmup_steps: WarmUpSteps, warmup_fraction: WarmUpFraction) -> None:
        self._warm_up = WarmUp(warmup_steps, warmup_fraction)

    def __call__(self, moment: Moment) -> float:
        """Return the factor by which the learning rate is multiplied."""
        progress = (moment.step + 1) / self._warm_up.steps(moment.total_steps)
        return min(progress, progress**-0.5)
