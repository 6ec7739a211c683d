"""Layer normalisation in the place of batch normalisation: no statistics, so nothing depends on the batch."""

from torch import Tensor, nn

from asr.settings.rule import Eps


class LayerNorm(nn.Module):
    """Normalise each frame over its channels; padding plays no part.

    Args:
        dim: channels.
        eps: added to the variance.
    """

    framewise = True

    def __init__(self, dim: int, *, eps: Eps) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=eps)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        return self.norm(x)
