"""Dropout with fast random masks on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.choice import wants_plain
from asr.errors import InputError

STEPS = 2**16  # resolution of a probability: masks are drawn as 16-bit integers, four at a time


class Dropout(nn.Module):
    """Set each value to zero with probability `p` in training, and scale all other values to preserve the mean.

    *Source*: Srivastava et al. 2014, "Dropout".

    *Differs from torch's dropout* on a CPU, where drawing a mask value by value takes longer than many matrix
    products: the probability is rounded to a multiple of 1 / STEPS, which also determines the scale. The random
    numbers come from torch's generator, so `torch.manual_seed` applies. On a GPU this is torch's dropout.

    Args:
        p: probability, at least 0 and below 1.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise InputError(f"dropout must be at least 0 and below 1; got {p}.")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout to a tensor of any shape."""
        num_kept = round((1 - self.p) * STEPS)
        if not self.training or num_kept == STEPS:
            return x
        if x.device.type != "cpu" or wants_plain():
            return F.dropout(x, self.p)
        drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        mask = torch.empty(x.shape, dtype=x.dtype)  # of floats: multiplication by booleans takes ten times as long
        torch.lt(drawn.view(torch.int16)[: x.numel()].view(x.shape), num_kept - STEPS // 2, out=mask)
        return x * mask.mul_(STEPS / num_kept)

    def extra_repr(self) -> str:
        """Return the probability for the printed module."""
        return f"p={self.p}"
