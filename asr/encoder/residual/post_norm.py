"""Residual connections that lead through the norms."""

from collections.abc import Callable

from torch import Tensor, nn


class PostNorm:
    """norm(x + f(x)); deep stacks need a low learning rate at the beginning.

    *Source*: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.
    """

    def __call__(self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(B, T', D) to the same."""
        return norm(x + sublayer(x))

    def sublayer_input(self, x: Tensor, norm: nn.Module) -> Tensor:
        """Compute what a sub-layer gets of x, (B, T', D) to the same."""
        return x

    def output_norm(self, dim: int) -> nn.Module:
        """Make what stands behind the last block: its own norm has been there."""
        return nn.Identity()
