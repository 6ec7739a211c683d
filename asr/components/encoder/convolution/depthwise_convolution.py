"""The Conformer's convolution module."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from asr.base.kernels.depthwise import depthwise
from asr.base.settings.rule import Bias, KernelSize
from asr.components.encoder.convolution.gate import gated
from asr.interfaces import ActivationMaker, NormMaker


class DepthwiseConvolution(nn.Module):
    """A pointwise convolution, GLU, a depthwise convolution, norm, activation, and a second pointwise convolution.

    *Source*: Gulati et al. 2020, arXiv:2005.08100, figure 2, where the activation is Swish. The figure's LayerNorm and
    dropout are in `ConformerBlock`.

    *Differs from the paper*: kernel sizes are odd, so that the convolution is centred.

    Args:
        kernel_size: kernel size of the depthwise convolution, in encoder frames; odd.
        bias: whether the three convolutions have a bias.
    """

    def __init__(
        self, dim: int, norm: NormMaker, activation: ActivationMaker, *, kernel_size: KernelSize, bias: Bias
    ) -> None:
        super().__init__()
        self.num_kept = kernel_size // 2  # number of frames before an output frame that the kernel covers
        self.pointwise1 = nn.Linear(dim, 2 * dim, bias)
        self.stacked_matrices = {"pointwise1": 2}  # value and gate of the GLU
        self.depthwise = nn.Conv1d(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim, bias=bias)
        self.norm = norm(dim)
        self.activation = activation()
        self.pointwise2 = nn.Linear(dim, dim, bias)

    @property
    def streaming(self) -> Self:
        """Return this object, which can convolve with frames of earlier chunks."""
        return self

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Map x (B, T, D) with padding_mask (B, T) to (B, T, D)."""
        x = gated(self.pointwise1(x), padding_mask)
        x = depthwise(x, self.depthwise.weight, self.depthwise.bias)
        x = self.activation(self.norm(x, padding_mask))
        return self.pointwise2(x)

    def extend(self, x: Tensor, before: Callable[[Tensor], Tensor], padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve x together with the frames before it.

        Args:
            x: input of the module, (B, Q, D).
            before: called with the depthwise convolution's input at the frames of x, (B, Q, D); returns its input at
                the earlier frames, (B, kernel // 2, D).
            padding_mask: mask of the frames of x, (B, Q).

        Returns:
            The output (B, Q, D), and the depthwise convolution's input at earlier and new frames,
            (B, kernel // 2 + Q, D).
        """
        x = gated(self.pointwise1(x), padding_mask)
        x = torch.cat([before(x), x], dim=1)
        out = depthwise(x, self.depthwise.weight, self.depthwise.bias)[:, self.num_kept :]
        return self.pointwise2(self.activation(self.norm(out, padding_mask))), x
