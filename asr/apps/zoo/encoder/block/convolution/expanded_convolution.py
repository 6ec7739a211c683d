"""The Conformer's convolution module, with more channels inside."""

from typing import Annotated

from torch import Tensor

from asr.base.kernels.depthwise import depthwise
from asr.base.settings.rule import KernelSize, whole
from asr.components.encoder.block.convolution.gated import GatedConvolution
from asr.interfaces import ActivationMaker, NormMaker

Expansion = Annotated[int, whole(1, 16)]


class ExpandedConvolution(GatedConvolution):
    """The module of `DepthwiseConvolution` whose gate, depthwise convolution and norm have `expansion` * D channels.

    *Source*: Saon et al. 2025 (Granite-speech), arXiv:2505.08699; transformers' GraniteSpeech5EncoderConvolutionModule.
    Only the pointwise convolutions have a bias.

    Args:
        kernel_size: kernel size of the depthwise convolution, in encoder frames; odd.
        expansion: number of channels, as a multiple of D.
    """

    def __init__(
        self, dim: int, norm: NormMaker, activation: ActivationMaker, *, kernel_size: KernelSize, expansion: Expansion
    ) -> None:
        self.expansion = expansion  # before the layers are made
        super().__init__(dim, norm, activation, kernel_size=kernel_size, bias=True)

    def make_convolution(self, channels: int, kernel_size: int, bias: bool) -> None:
        """Make the weights of the depthwise convolution, which has no bias."""
        super().make_convolution(channels, kernel_size, bias=False)

    def convolve(self, x: Tensor, num_before: int) -> Tensor:
        """Map x (B, T, C) to (B, T, C)."""
        return depthwise(x, self.depthwise.weight, self.depthwise.bias)
