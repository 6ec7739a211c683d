"""The Swish activation with a trained beta."""

from typing import Annotated

import torch
from torch import Tensor, nn

from asr.base.settings.rule import number


class LearntSwish(nn.Module):
    """The function x sigmoid(beta x); each instance trains a separate beta.

    *Source*: Ramachandran et al. 2017, arXiv:1710.05941.

    Args:
        beta: initial value of the trained beta.
    """

    def __init__(self, *, beta: Annotated[float, number(0, 1_000)]) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(float(beta)))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise to a tensor of any shape."""
        return x * torch.sigmoid(self.beta * x)
