"""The Conformer's convolution module, with a dilated convolution."""

from typing import Annotated

from torch import Tensor, nn

from asr.base.kernels.depthwise import depthwise
from asr.base.settings.rule import KernelSize, whole
from asr.components.encoder.convolution.gate import gated
from asr.interfaces import ActivationMaker, NormMaker


class DilatedConvolution(nn.Module):
    """A pointwise convolution, GLU, a dilated depthwise convolution, norm, activation, and a pointwise convolution.

    The kernel spans about `dilation` times as many frames as in a `DepthwiseConvolution` with equal kernel size.

    *Source*: Yu and Koltun 2015, arXiv:1511.07122, in the module of arXiv:2005.08100, figure 2.

    Args:
        kernel_size: number of frames that each output combines; odd.
        dilation: distance between neighbouring frames that an output combines, in encoder frames.
    """

    streaming = None

    def __init__(
        self,
        dim: int,
        norm: NormMaker,
        activation: ActivationMaker,
        *,
        kernel_size: KernelSize,
        dilation: Annotated[int, whole(1, 1_000)],
    ) -> None:
        super().__init__()
        self.dilation = dilation
        self.pointwise1 = nn.Linear(dim, 2 * dim)
        self.stacked_matrices = {"pointwise1": 2}  # value and gate of the GLU
        self.depthwise = nn.Conv1d(dim, dim, kernel_size, dilation=dilation, groups=dim)
        self.norm = norm(dim)
        self.activation = activation()
        self.pointwise2 = nn.Linear(dim, dim)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Map x (B, T, D) with padding_mask (B, T) to (B, T, D)."""
        x = gated(self.pointwise1(x), padding_mask)
        x = depthwise(x, self.depthwise.weight, self.depthwise.bias, self.dilation)
        x = self.activation(self.norm(x, padding_mask))
        return self.pointwise2(x)
