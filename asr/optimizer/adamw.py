"""AdamW."""

from collections.abc import Iterable
from typing import Annotated, Any

import torch
from torch import nn

from asr.system.settings import PROBABILITY, Eps, list_of, number


class AdamW:
    """Adam with decay of the weights themselves; vectors (biases, norms) have no direction to shrink, and keep theirs.

    *Source*: Loshchilov and Hutter 2019, arXiv:1711.05101; torch's own.

    Args:
        lr: learning rate at the schedule's peak.
        betas: decay of the running means of the gradient and of its square.
        eps: added to the root of the latter.
        weight_decay: of matrices, times the learning rate.
    """

    def __init__(
        self,
        *,
        lr: Annotated[float, number(0, 1_000)],
        betas: Annotated[list[float], list_of(PROBABILITY, "of two numbers from 0 to less than 1", 2, 2)],
        eps: Eps,
        weight_decay: Annotated[float, number(0, 1_000)],
    ) -> None:
        self._settings: dict[str, Any] = {
            "lr": lr,
            "betas": tuple(map(float, betas)),
            "eps": eps,
            "weight_decay": weight_decay,
        }

    def __call__(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Make the optimizer of these parameters."""
        trained = [parameter for _, parameter in named_parameters]
        groups: list[dict[str, Any]] = [
            {"params": [parameter for parameter in trained if parameter.ndim > 1]},
            {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, **self._settings, fused=True)  # one pass over the weights: less memory traffic
