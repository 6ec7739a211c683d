"""The frame of an optimizer that updates one group of weights after another."""

from typing import Any

import torch


class OptimizerByGroup(torch.optim.Optimizer):
    """An optimizer whose rule is applied to each group of weights.

    Args:
        groups: groups of weights with all settings.
        lr: learning rate of weights outside of the encoder's blocks.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float) -> None:
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all weights that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self.update(group)
        return loss

    def update(self, group: dict[str, Any]) -> None:
        """Update the weights of a group that have a gradient."""
        raise NotImplementedError
