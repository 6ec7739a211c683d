"""The losses of a batch."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class Losses(NamedTuple):
    """Losses of a batch of B examples.

    Args:
        by_name: losses of each example, (B,) each. The loss named "loss" is minimised; the others are logged.
        units: number of units of each example, (B,), such as the tokens of its reference. The sum of the losses is
            divided by the number of all units of the optimizer step.
    """

    by_name: Mapping[str, Tensor]
    units: Tensor

    @property
    def loss(self) -> Tensor:
        """The loss that is minimised, (B,)."""
        return self.by_name["loss"]
