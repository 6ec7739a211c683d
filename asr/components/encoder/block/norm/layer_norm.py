"""Layer normalisation in place of batch normalisation; the result is independent of the batch."""

from torch import Tensor, nn

from asr.base.settings.rule import Eps


class LayerNorm(nn.Module):
    """Normalise each frame over its channels; the result is independent of padding.

    Args:
        eps: number that is added to the variance.
    """

    framewise = True

    def __init__(self, dim: int, *, eps: Eps) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=eps)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Normalise (B, T, D) to (B, T, D)."""
        return self.norm(x)
