"""Pre-norm residual connections: LayerNorm before the sub-layer."""

from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout


class PreNormResidual(nn.Module):
    """Residual connection x + sublayer(norm(x)). Training is stable without a long warm-up.

    *Source*: Xiong et al. 2020, arXiv:2002.04745, figure 1 (b).

    Args:
        dim: D.
        dropout: dropout of the branch.
    """

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def enter(self, x: Tensor) -> Tensor:
        """Return the input of the sub-layer."""
        return self.norm(x)

    def leave(self, x: Tensor, branch: Tensor) -> Tensor:
        """Add the output of the sub-layer to x."""
        return x + self.dropout(branch)

    @staticmethod
    def last(dim: int) -> nn.Module:
        """Make the layer after the last block: a LayerNorm, because the block's output is not normalised."""
        return nn.LayerNorm(dim)
