"""The Swish activation."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.settings.rule import number


class Swish(nn.Module):
    """The function x sigmoid(beta x).

    *Source*: Ramachandran et al. 2017, arXiv:1710.05941.

    Args:
        beta: slope of the sigmoid. 0 gives x / 2, 1 gives SiLU, large values approach ReLU.
    """

    def __init__(self, *, beta: Annotated[float, number(0, 1_000)]) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise to a tensor of any shape."""
        return F.silu(x) if self.beta == 1 else x * torch.sigmoid(self.beta * x)  # silu accesses memory only once
