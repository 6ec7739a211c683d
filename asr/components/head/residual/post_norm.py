"""Post-norm residual connections: LayerNorm after the sum."""

from torch import Tensor, nn

from asr.components.head.residual.pre_norm import PreNormResidual


class PostNormResidual(PreNormResidual):
    """Residual connection norm(x + sublayer(x)). Training needs a long warm-up.

    *Source*: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.
    """

    def enter(self, x: Tensor) -> Tensor:
        """Return the input of the sub-layer."""
        return x

    def leave(self, x: Tensor, branch: Tensor) -> Tensor:
        """Add the output of the sub-layer to x and normalise the sum."""
        return self.norm(x + self.dropout(branch))

    @staticmethod
    def last(dim: int) -> nn.Module:
        """Make the layer after the last block: the identity, because the block's output is already normalised."""
        return nn.Identity()
