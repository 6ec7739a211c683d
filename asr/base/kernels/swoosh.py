"""The Swoosh activations of a Zipformer: a plain form, and a form that stores only its input for the gradient."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.base.kernels.choice import wants_plain

SLOPE = 0.08
LINEAR_FROM = 40.0  # log(1 + exp(x)) is x within the precision of float64, unlike above 20, where torch says so


def swoosh(x: Tensor, shift: float, constant: float) -> Tensor:
    """Compute log(1 + exp(x - shift)) - 0.08 x - constant elementwise.

    *Source*: Yao et al. 2023, arXiv:2310.11230.
    """
    if wants_plain():
        return swoosh_plainly(x, shift, constant)
    out: Tensor = _Swoosh.apply(x, shift, constant)
    return out


def swoosh_plainly(x: Tensor, shift: float, constant: float) -> Tensor:
    """Compute the formula operation by operation."""
    return F.softplus(x - shift, threshold=LINEAR_FROM) - SLOPE * x - constant


class _Swoosh(torch.autograd.Function):
    """The formula in fewer passes over memory; on a CPU, these take most of its time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: float, constant: float) -> Tensor:
        """Compute the value, in the type of x."""
        ctx.save_for_backward(x)
        ctx.shift = shift
        return F.softplus(x - shift, threshold=LINEAR_FROM).sub_(x, alpha=SLOPE).sub_(constant)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Compute the gradient: that of the formula is sigmoid(x - shift) - 0.08."""
        (x,) = ctx.saved_tensors
        return (x - ctx.shift).sigmoid_().sub_(SLOPE).mul_(grad), None, None
