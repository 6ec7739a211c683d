"""LayerNorm before a sub-layer."""

from torch import Tensor, nn


class PreNorm:
    """A residual branch whose input is normalised: x + sublayer(norm(x)). It trains without care.

    It holds no norm itself: those of a block keep the names that they have in older models.

    *Source*: Xiong et al. 2020, arXiv:2002.04745, figure 1 (b).
    """

    @staticmethod
    def enter(x: Tensor, norm: nn.Module) -> Tensor:
        """What the sub-layer gets of x."""
        return norm(x)

    @staticmethod
    def leave(x: Tensor, branch: Tensor, norm: nn.Module) -> Tensor:
        """Join x and what the sub-layer gave."""
        return x + branch

    @staticmethod
    def last(dim: int) -> nn.Module:
        """Make what stands behind the last block: nothing there is normalised yet."""
        return nn.LayerNorm(dim)
