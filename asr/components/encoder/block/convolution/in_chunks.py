"""The convolution module of a streaming Zipformer."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.depthwise import depthwise
from asr.components.encoder.block.convolution.gated import GatedConvolution


class ChunkConvolution(GatedConvolution):
    """A `GatedConvolution` with two depthwise convolutions, whose sum uses no frame after a frame's chunk.

    One is causal: its kernel is the first half of a centred one, up to the frame. The other one is centred and sees
    zeros outside the chunk; its output is multiplied by 1 + the scales that each channel has for the frame's distances
    from both ends of the chunk.

    *Source*: Yao et al. 2023 (Zipformer), arXiv:2310.11230, and icefall's Zipformer, which has the scales.
    """

    def make_convolution(self, channels: int, kernel_size: int, bias: bool) -> None:
        """Make the weights of both convolutions and the scales."""
        before = kernel_size // 2
        self.num_before = before  # number of frames before a chunk that the causal convolution needs
        self.causal = nn.Conv1d(channels, channels, before + 1, groups=channels, bias=bias)
        self.within = nn.Conv1d(channels, channels, kernel_size, padding=before, groups=channels, bias=bias)
        # By the distance from the first frame of the chunk, and reversed, by that from the last one.
        self.scales = nn.Parameter(torch.zeros(2, channels, kernel_size))

    def in_chunks(
        self, x: Tensor, joined: Callable[[Tensor], Tensor], chunk: int, ends: Tensor, padding_mask: Tensor
    ) -> Tensor:
        """Map x (B, T, D), which begins with a chunk, to (B, T, D).

        Args:
            x: frames.
            joined: given the inputs of the convolutions for x, (B, T, D), returns them with the `num_before` frames
                before them.
            chunk: number of frames of a chunk.
            ends: number of frames from the first frame of a chunk to its end, for the scales, (B,): `chunk`, or fewer
                if the utterance has fewer.
            padding_mask: padding mask, (B, T).
        """
        new = self._gated(x, padding_mask)
        frame = torch.arange(new.shape[1], device=x.device) % chunk
        from_last = ends[:, None] - 1 - frame  # (B, T)
        near = self._causal(joined(new)) + self._within(new, chunk) * self._scale(frame, from_last)
        return self._mixed(near, padding_mask)

    def _causal(self, x: Tensor) -> Tensor:
        """Map (B, num_before + T, D) to (B, T, D)."""
        weight = F.pad(self.causal.weight, (self.num_before % 2, 0))  # odd, as `depthwise` needs
        half = weight.shape[2] // 2
        return depthwise(x, weight, self.causal.bias).narrow(1, self.num_before - half, x.shape[1] - self.num_before)

    def _within(self, x: Tensor, chunk: int) -> Tensor:
        """Convolve each chunk of (B, T, D) by itself."""
        chunks = F.pad(x, (0, 0, 0, -x.shape[1] % chunk)).reshape(-1, chunk, x.shape[2])
        out = depthwise(chunks, self.within.weight, self.within.bias)
        return out.reshape(x.shape[0], -1, x.shape[2]).narrow(1, 0, x.shape[1])

    def _scale(self, from_first: Tensor, from_last: Tensor) -> Tensor:
        """Return the factors (B, T, D) for distances (T,) from the first and (B, T) from the last frame of a chunk."""
        first, last = self.scales[0].T, self.scales[1].flip(1).T  # (kernel size, D) each
        most = len(first)  # further frames have the scale 0
        first, last = (F.pad(scales, (0, 0, 0, 1)) for scales in (first, last))
        return 1.0 + first[from_first.clamp(max=most)] + last[from_last.clamp(0, most)]
