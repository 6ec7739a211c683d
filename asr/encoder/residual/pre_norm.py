"""Residual connections that the norms stand beside."""

from collections.abc import Callable

from torch import Tensor, nn


class PreNorm:
    """x + f(norm(x)), and one norm behind the last block: trains without care.

    *Source*: Xiong et al. 2020, arXiv:2002.04745.
    """

    def __call__(self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(B, T', D) to the same."""
        return x + sublayer(norm(x))

    def sublayer_input(self, x: Tensor, norm: nn.Module) -> Tensor:
        """Compute what a sub-layer gets of x, (B, T', D) to the same."""
        return norm(x)

    def output_norm(self, dim: int) -> nn.Module:
        """Make what stands behind the last block."""
        return nn.LayerNorm(dim)
