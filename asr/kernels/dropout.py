"""Dropout whose masks are drawn fast on a processor, too."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.errors import InputError
from asr.kernels.choice import wants_plain

STEPS = 2**16  # of a probability: masks are drawn as 16-bit integers, four at a time


class Dropout(nn.Module):
    """Zero each value with probability `p` while training, and scale the others so that the mean stays.

    *Source*: Srivastava et al. 2014, "Dropout".

    *Differs from torch's* on a processor, where drawing a mask value by value takes longer than many a matrix product:
    a probability is a multiple of 1 / STEPS there, and the scale follows from that. The generator is torch's, so
    `torch.manual_seed` counts. On a GPU it is torch's dropout.

    Args:
        p: probability, at least 0 and below 1.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise InputError(f"dropout must be at least 0 and below 1; got {p}.")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same."""
        kept = round((1 - self.p) * STEPS)
        if not self.training or kept == STEPS:
            return x
        if x.device.type != "cpu" or wants_plain():
            return F.dropout(x, self.p)
        drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        mask = torch.empty(x.shape, dtype=x.dtype)  # of floats: to multiply by booleans takes ten times as long
        torch.lt(drawn.view(torch.int16)[: x.numel()].view(x.shape), kept - STEPS // 2, out=mask)
        return x * mask.mul_(STEPS / kept)

    def extra_repr(self) -> str:
        """Say the probability."""
        return f"p={self.p}"
