"""The Conformer's convolution module, with a dilated convolution."""

from typing import Annotated

from torch import Tensor

from asr.base.kernels.depthwise import depthwise
from asr.base.settings.rule import KernelSize, whole
from asr.components.encoder.block.convolution.gated import GatedConvolution
from asr.interfaces import ActivationMaker, NormMaker

Dilation = Annotated[int, whole(1, 1_000)]


class DilatedConvolution(GatedConvolution):
    """A `GatedConvolution` whose convolution over frames is depthwise and dilated.

    The kernel spans about `dilation` times as many frames as in a `DepthwiseConvolution` with equal kernel size.

    *Source*: Yu and Koltun 2015, arXiv:1511.07122, in the module of arXiv:2005.08100, figure 2.

    Args:
        kernel_size: number of frames that each output combines; odd.
        dilation: distance between neighbouring frames that an output combines, in encoder frames.
    """

    def __init__(
        self, dim: int, norm: NormMaker, activation: ActivationMaker, *, kernel_size: KernelSize, dilation: Dilation
    ) -> None:
        super().__init__(dim, norm, activation, kernel_size=kernel_size, bias=True)
        self.dilation = dilation

    def convolve(self, x: Tensor, num_before: int) -> Tensor:
        """Map x (B, T, D) to (B, T, D)."""
        return depthwise(x, self.depthwise.weight, self.depthwise.bias, self.dilation)
