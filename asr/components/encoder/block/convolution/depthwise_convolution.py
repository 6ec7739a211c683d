"""The Conformer's convolution module."""

from torch import Tensor

from asr.base.kernels.depthwise import depthwise
from asr.components.encoder.block.convolution.gated import GatedConvolution


class DepthwiseConvolution(GatedConvolution):
    """A `GatedConvolution` whose convolution over frames is depthwise and centred.

    *Differs from the paper*: kernel sizes are odd, so that the convolution is centred.
    """

    @property
    def num_kept(self) -> int:
        """Number of frames before an output frame that the kernel covers."""
        return self.depthwise.kernel_size[0] // 2

    def convolve(self, x: Tensor, num_before: int) -> Tensor:
        """Map x (B, num_before + T, D) to (B, T, D)."""
        out = depthwise(x, self.depthwise.weight, self.depthwise.bias)
        return out[:, num_before:] if num_before else out
