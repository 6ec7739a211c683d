"""LayerNorm behind a sub-layer."""

from torch import Tensor, nn


class PostNorm:
    """A residual branch whose sum is normalised: norm(x + sublayer(x)). It needs a long warm-up.

    It holds no norm itself: those of a block keep the names that they have in older models.

    *Source*: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.
    """

    @staticmethod
    def enter(x: Tensor, norm: nn.Module) -> Tensor:
        """What the sub-layer gets of x."""
        return x

    @staticmethod
    def leave(x: Tensor, branch: Tensor, norm: nn.Module) -> Tensor:
        """Join x and what the sub-layer gave."""
        return norm(x + branch)

    @staticmethod
    def last(dim: int) -> nn.Module:
        """Make what stands behind the last block: its output is normalised."""
        return nn.Identity()
