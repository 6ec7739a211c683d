"""Linear warm-up, then decay with the inverse square root of the step."""

from typing import Annotated

from asr.interfaces import Moment
from asr.settings.rule import whole


class Noam:
    """The Transformer's schedule, scaled so that the peak is the optimizer's learning rate.

    *Source*: Vaswani et al. 2017, arXiv:1706.03762, section 5.3.

    Args:
        warmup_steps: number of steps until the peak.
    """

    def __init__(self, *, warmup_steps: Annotated[int, whole(0)]) -> None:
        self.warmup_steps = max(1, warmup_steps)

    def __call__(self, moment: Moment) -> float:
        """Return the factor by which the learning rate is multiplied."""
        progress = (moment.step + 1) / self.warmup_steps
        return min(progress, progress**-0.5)
