"""LayerNorm behind a sub-layer."""

from torch import Tensor, nn

from asr.kernels.dropout import Dropout


class PostNormResidual(nn.Module):
    """A residual branch whose sum is normalised: norm(x + sublayer(x)). It needs a long warm-up.

    *Source*: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.

    Args:
        dim: D.
        dropout: of the branch.
    """

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def enter(self, x: Tensor) -> Tensor:
        """What the sub-layer gets of x."""
        return x

    def leave(self, x: Tensor, branch: Tensor) -> Tensor:
        """Join x and what the sub-layer gave."""
        return self.norm(x + self.dropout(branch))

    @staticmethod
    def last(dim: int) -> nn.Module:
        """Make what stands behind the last block: its output is normalised."""
        return nn.Identity()
