"""Post-norm residual connections: LayerNorm after the sum."""

from torch import Tensor, nn


class PostNorm:
    """The residual connection norm(x + sublayer(x)). Training needs a long warm-up.

    The norms are attributes of the block, so that their weights have the same names as in older checkpoints.

    *Source*: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.
    """

    @staticmethod
    def enter(x: Tensor, norm: nn.Module) -> Tensor:
        """Return the input of the sub-layer."""
        return x

    @staticmethod
    def leave(x: Tensor, branch: Tensor, norm: nn.Module) -> Tensor:
        """Add the output of the sub-layer to x and normalise the sum."""
        return norm(x + branch)

    @staticmethod
    def last(dim: int) -> nn.Module:
        """Make the layer after the last block: the identity, because the output of the block is already normalised."""
        return nn.Identity()
