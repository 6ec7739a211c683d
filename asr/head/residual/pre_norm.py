"""LayerNorm before a sub-layer."""

from torch import Tensor, nn

from asr.kernels.dropout import Dropout


class PreNormResidual(nn.Module):
    """A residual branch whose input is normalised: x + sublayer(norm(x)). It trains without care.

    *Source*: Xiong et al. 2020, arXiv:2002.04745, figure 1 (b).

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
        return self.norm(x)

    def leave(self, x: Tensor, branch: Tensor) -> Tensor:
        """Join x and what the sub-layer gave."""
        return x + self.dropout(branch)

    @staticmethod
    def last(dim: int) -> nn.Module:
        """Make what stands behind the last block: nothing there is normalised yet."""
        return nn.LayerNorm(dim)
