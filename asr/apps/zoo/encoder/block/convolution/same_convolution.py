"""The Conformer's convolution module, with a kernel of any size."""

from typing import Annotated

from torch import Tensor

from asr.base.kernels.depthwise import depthwise
from asr.base.settings.rule import Bias, whole
from asr.components.encoder.block.convolution.gated import GatedConvolution
from asr.interfaces import ActivationMaker, NormMaker

AnySize = Annotated[int, whole(1, 1_001)]


class SameConvolution(GatedConvolution):
    """The module of `DepthwiseConvolution`, with a kernel of any size.

    An even kernel covers one frame more after its frame than before it: 15 frames before and 16 after it for a size of
    32, as torch's padding "same".

    *Source*: Gulati et al. 2020, arXiv:2005.08100, figure 2 and table 1, where the kernel size is 32.

    Args:
        kernel_size: kernel size of the depthwise convolution, in encoder frames.
        bias: whether the three convolutions have a bias.
    """

    def __init__(
        self, dim: int, norm: NormMaker, activation: ActivationMaker, *, kernel_size: AnySize, bias: Bias
    ) -> None:
        super().__init__(dim, norm, activation, kernel_size=kernel_size, bias=bias)
        self.surplus = 1 - kernel_size % 2  # frames that a kernel with padding kernel_size // 2 adds at the beginning

    def convolve(self, x: Tensor, num_before: int) -> Tensor:
        """Map x (B, T, D) to (B, T, D)."""
        return depthwise(x, self.depthwise.weight, self.depthwise.bias)[:, self.surplus :]
