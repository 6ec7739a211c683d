"""The Conformer's convolution module, with a convolution over frames and channels."""

from torch import Tensor, nn

from asr.base.settings.rule import KernelSize
from asr.components.encoder.block.convolution.gated import GatedConvolution
from asr.interfaces import ActivationMaker, NormMaker


class PlainConvolution(GatedConvolution):
    """A `GatedConvolution` whose convolution is over frames and channels, and so has D times as many weights.

    Args:
        kernel_size: kernel size of the convolution, in encoder frames; odd.
    """

    def __init__(self, dim: int, norm: NormMaker, activation: ActivationMaker, *, kernel_size: KernelSize) -> None:
        super().__init__(dim, norm, activation, kernel_size=kernel_size, bias=True)

    def make_convolution(self, channels: int, kernel_size: int, bias: bool) -> None:
        """Make the weights of the convolution."""
        self.convolution = nn.Conv1d(channels, channels, kernel_size, padding=kernel_size // 2, bias=bias)

    def convolve(self, x: Tensor, num_before: int) -> Tensor:
        """Map x (B, T, D) to (B, T, D)."""
        return self.convolution(x.transpose(1, 2)).transpose(1, 2)
