"""The Conformer's convolution module, with a causal convolution."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from asr.base.kernels.depthwise import depthwise
from asr.base.settings.rule import Bias, KernelSize
from asr.components.encoder.convolution.gate import gated
from asr.interfaces import ActivationMaker, NormMaker


class CausalConvolution(nn.Module):
    """The module of `DepthwiseConvolution`, with a kernel that covers a frame and the frames before it.

    *Source*: Noroozi et al. 2024, arXiv:2312.17279, section 3, where the norm is LayerNorm.

    Args:
        kernel_size: kernel size of the depthwise convolution, in encoder frames; odd.
        bias: whether the three convolutions have a bias.
    """

    def __init__(
        self, dim: int, norm: NormMaker, activation: ActivationMaker, *, kernel_size: KernelSize, bias: Bias
    ) -> None:
        super().__init__()
        self.num_kept = kernel_size - 1  # number of frames before an output frame that the kernel covers
        self.pointwise1 = nn.Linear(dim, 2 * dim, bias)
        self.stacked_matrices = {"pointwise1": 2}  # value and gate of the GLU
        self.depthwise = nn.Conv1d(dim, dim, kernel_size, groups=dim, bias=bias)
        self.norm = norm(dim)
        self.activation = activation()
        self.pointwise2 = nn.Linear(dim, dim, bias)

    @property
    def streaming(self) -> Self:
        """Return this object, which can convolve with frames of earlier chunks."""
        return self

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Map x (B, T, D) with padding_mask (B, T) to (B, T, D)."""
        return self.extend(x, lambda new: new.new_zeros(new.shape[0], self.num_kept, new.shape[2]), padding_mask)[0]

    def extend(self, x: Tensor, before: Callable[[Tensor], Tensor], padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve x together with the frames before it, as `DepthwiseConvolution` does; `num_kept` is kernel - 1."""
        frames = x.shape[1]
        x = gated(self.pointwise1(x), padding_mask)
        x = torch.cat([before(x), x], dim=1)
        # The kernel's output at a frame is that of a centred kernel num_kept / 2 frames earlier.
        out = depthwise(x, self.depthwise.weight, self.depthwise.bias).narrow(1, self.num_kept // 2, frames)
        return self.pointwise2(self.activation(self.norm(out, padding_mask))), x
