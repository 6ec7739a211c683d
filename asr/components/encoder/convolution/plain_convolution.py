"""The Conformer's convolution module, with a convolution over frames and channels."""

from torch import Tensor, nn

from asr.base.settings.rule import KernelSize
from asr.components.encoder.convolution.gate import gated
from asr.interfaces import ActivationMaker, NormMaker


class PlainConvolution(nn.Module):
    """A pointwise convolution, GLU, a full convolution, norm, activation, and a second pointwise convolution.

    *Source*: Gulati et al. 2020, arXiv:2005.08100, figure 2.

    *Differs from the paper*: the convolution is over frames and channels, and therefore has D times as many weights.

    Args:
        norm: makes the norm after the convolution, given D.
        kernel_size: kernel size of the convolution, in encoder frames; odd.
    """

    streaming = None

    def __init__(self, dim: int, norm: NormMaker, activation: ActivationMaker, *, kernel_size: KernelSize) -> None:
        super().__init__()
        self.pointwise1 = nn.Linear(dim, 2 * dim)
        self.stacked_matrices = {"pointwise1": 2}  # value and gate of the GLU
        self.convolution = nn.Conv1d(dim, dim, kernel_size, padding=kernel_size // 2)
        self.norm = norm(dim)
        self.activation = activation()
        self.pointwise2 = nn.Linear(dim, dim)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Map x (B, T, D) with padding_mask (B, T) to (B, T, D)."""
        x = gated(self.pointwise1(x), padding_mask).transpose(1, 2)
        x = self.convolution(x).transpose(1, 2)
        x = self.activation(self.norm(x, padding_mask))
        return self.pointwise2(x)
