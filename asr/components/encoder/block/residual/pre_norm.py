"""Pre-norm residual connections: LayerNorm before the sub-layer."""

from torch import Tensor, nn


class PreNorm:
    """The residual connection x + sublayer(norm(x)). Training is stable without a long warm-up.

    The norms are attributes of the block, so that their weights have the same names as in older checkpoints.

    *Source*: Xiong et al. 2020, arXiv:2002.04745, figure 1 (b).
    """

    @staticmethod
    def enter(x: Tensor, norm: nn.Module) -> Tensor:
        """Return the input of the sub-layer."""
        return norm(x)

    @staticmethod
    def leave(x: Tensor, branch: Tensor, norm: nn.Module) -> Tensor:
        """Add the output of the sub-layer to x."""
        return x + branch

    @staticmethod
    def last(dim: int) -> nn.Module:
        """Make the layer after the last block: a LayerNorm, because the output of the block is not normalised."""
        return nn.LayerNorm(dim)
