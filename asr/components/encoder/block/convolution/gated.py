"""The frame of the convolution modules of a Conformer: pointwise convolutions, gate, norm and activation."""

from collections.abc import Callable
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.settings.rule import Bias, KernelSize
from asr.interfaces import ActivationMaker, NormMaker


class GatedConvolution(nn.Module):
    """A pointwise convolution, GLU, a convolution over frames, norm, activation, and a second pointwise convolution.

    Each kind gives `convolve`; a kind that can continue from chunk to chunk also gives `num_kept`.

    *Source*: Gulati et al. 2020, arXiv:2005.08100, figure 2, where the activation is Swish. The figure's LayerNorm and
    dropout are in the block.

    Args:
        kernel_size: kernel size of the convolution over frames, in encoder frames; odd.
        bias: whether the three convolutions have a bias.
    """

    expansion = 1  # channels between the pointwise convolutions, as a multiple of D

    def __init__(
        self, dim: int, norm: NormMaker, activation: ActivationMaker, *, kernel_size: KernelSize, bias: Bias
    ) -> None:
        super().__init__()
        channels = self.expansion * dim
        self.pointwise1 = nn.Linear(dim, 2 * channels, bias)
        self.stacked_matrices = {"pointwise1": 2}  # value and gate of the GLU
        self.make_convolution(channels, kernel_size, bias)
        self.norm = norm(channels)
        self.activation = activation()
        self.pointwise2 = nn.Linear(channels, dim, bias)

    def make_convolution(self, channels: int, kernel_size: int, bias: bool) -> None:
        """Make the weights of the convolution over frames; here those of a depthwise one."""
        padding = kernel_size // 2
        self.depthwise = nn.Conv1d(channels, channels, kernel_size, padding=padding, groups=channels, bias=bias)

    def convolve(self, x: Tensor, num_before: int) -> Tensor:
        """Map x (B, num_before + T, C) to (B, T, C); `num_before` is `num_kept`, or 0: zeros come before x."""
        raise NotImplementedError

    @property
    def num_kept(self) -> int | None:
        """Number of frames before an output frame that the kernel covers; None: it cannot continue from a chunk."""
        return None

    @property
    def streaming(self) -> Self | None:
        """This object if it can convolve with frames of earlier chunks; else None."""
        return None if self.num_kept is None else self

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Map x (B, T, D) with padding_mask (B, T) to (B, T, D)."""
        return self._mixed(self.convolve(self._gated(x, padding_mask), 0), padding_mask)

    def extend(self, x: Tensor, before: Callable[[Tensor], Tensor], padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve x (B, Q, D) together with the frames before it, as in `StreamingConvolution`."""
        new = self._gated(x, padding_mask)
        frames = torch.cat([before(new), new], dim=1)
        return self._mixed(self.convolve(frames, self.num_kept or 0), padding_mask), frames

    def _gated(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, C), with zeros after the last frame of an utterance, whatever the batch."""
        return F.glu(self.pointwise1(x)).masked_fill(padding_mask[:, :, None], 0.0)

    def _mixed(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, D)."""
        return self.pointwise2(self.activation(self.norm(x, padding_mask)))
