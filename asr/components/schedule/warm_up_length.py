"""The length of a warm-up, given in steps or as a fraction of the run."""

from typing import Annotated

from asr.base.settings.rule import FRACTION, or_null, whole
from asr.errors import InputError

WarmUpSteps = Annotated[int | None, or_null(whole(0))]
WarmUpFraction = Annotated[float | None, or_null(FRACTION)]


class WarmUp:
    """A number of optimizer steps, which may depend on the length of the run.

    Args:
        steps: number of steps.
        fraction: fraction of the run's steps, instead of their number.

    Raises:
        InputError: both are given, or none is.
    """

    def __init__(self, steps: int | None, fraction: float | None) -> None:
        if (steps is None) == (fraction is None):
            must = "either schedule.warmup_steps or schedule.warmup_fraction must be null"
            raise InputError(f"{must}; got {steps} and {fraction}. Set one of them.")
        self._steps, self._fraction = steps, fraction

    def steps(self, total_steps: int) -> int:
        """Return the number of steps, at least 1, in a run of `total_steps`."""
        return max(1, round(self._fraction * total_steps) if self._fraction is not None else self._steps or 0)
