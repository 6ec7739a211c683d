"""The Conformer's convolution module, with a kernel of any size."""

from typing import Annotated

from torch import Tensor, nn

from asr.base.kernels.depthwise import depthwise
from asr.base.settings.rule import Bias, whole
from asr.components.encoder.convolution.gate import gated
from asr.interfaces import ActivationMaker, NormMaker


class SameConvolution(nn.Module):
    """The module of `DepthwiseConvolution`, with a kernel of any size.

    An even kernel covers one frame more after its frame than before it: 15 frames before and 16 after it for a size of
    32, as torch's padding "same".

    *Source*: Gulati et al. 2020, arXiv:2005.08100, figure 2 and table 1, where the kernel size is 32.

    Args:
        kernel_size: kernel size of the depthwise convolution, in encoder frames.
        bias: whether the three convolutions have a bias.
    """

    streaming = None

    def __init__(
        self,
        dim: int,
        norm: NormMaker,
        activation: ActivationMaker,
        *,
        kernel_size: Annotated[int, whole(1, 1_001)],
        bias: Bias,
    ) -> None:
        super().__init__()
        self.surplus = 1 - kernel_size % 2  # frames that a kernel with padding kernel_size // 2 adds at the beginning
        self.pointwise1 = nn.Linear(dim, 2 * dim, bias)
        self.stacked_matrices = {"pointwise1": 2}  # value and gate of the GLU
        self.depthwise = nn.Conv1d(dim, dim, kernel_size, padding="same", groups=dim, bias=bias)
        self.norm = norm(dim)
        self.activation = activation()
        self.pointwise2 = nn.Linear(dim, dim, bias)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Map x (B, T, D) with padding_mask (B, T) to (B, T, D)."""
        x = gated(self.pointwise1(x), padding_mask)
        x = depthwise(x, self.depthwise.weight, self.depthwise.bias)[:, self.surplus :]
        return self.pointwise2(self.activation(self.norm(x, padding_mask)))
