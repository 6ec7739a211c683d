"""The Swish activation whose beta is learnt."""

from typing import Annotated

import torch
from torch import Tensor, nn

from asr.settings.rule import number


class LearntSwish(nn.Module):
    """x sigmoid(beta x), each place in the net with a beta of its own, which is trained.

    *Source*: Ramachandran et al. 2017, arXiv:1710.05941.

    Args:
        beta: that training begins with.
    """

    def __init__(self, *, beta: Annotated[float, number(0, 1_000)]) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(float(beta)))

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same."""
        return x * torch.sigmoid(self.beta * x)
