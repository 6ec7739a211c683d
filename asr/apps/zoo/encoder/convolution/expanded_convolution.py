"""The Conformer's convolution module, with more channels inside."""

from typing import Annotated

from torch import Tensor, nn

from asr.base.kernels.depthwise import depthwise
from asr.base.settings.rule import KernelSize, whole
from asr.components.encoder.convolution.gate import gated
from asr.interfaces import ActivationMaker, NormMaker


class ExpandedConvolution(nn.Module):
    """The module of `DepthwiseConvolution` whose gate, depthwise convolution and norm have `expansion` * D channels.

    *Source*: Saon et al. 2025 (Granite-speech), arXiv:2505.08699; transformers' GraniteSpeech5EncoderConvolutionModule.
    Only the pointwise convolutions have a bias.

    Args:
        norm: makes the norm after the depthwise convolution, given its number of channels.
        kernel_size: kernel size of the depthwise convolution, in encoder frames; odd.
        expansion: number of channels, as a multiple of D.
    """

    streaming = None

    def __init__(
        self,
        dim: int,
        norm: NormMaker,
        activation: ActivationMaker,
        *,
        kernel_size: KernelSize,
        expansion: Annotated[int, whole(1, 16)],
    ) -> None:
        super().__init__()
        channels = expansion * dim
        self.pointwise1 = nn.Linear(dim, 2 * channels)
        self.stacked_matrices = {"pointwise1": 2}  # value and gate of the GLU
        self.depthwise = nn.Conv1d(
            channels, channels, kernel_size, padding=kernel_size // 2, groups=channels, bias=False
        )
        self.norm = norm(channels)
        self.activation = activation()
        self.pointwise2 = nn.Linear(channels, dim)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Map x (B, T, D) with padding_mask (B, T) to (B, T, D)."""
        x = depthwise(gated(self.pointwise1(x), padding_mask), self.depthwise.weight, self.depthwise.bias)
        return self.pointwise2(self.activation(self.norm(x, padding_mask)))
