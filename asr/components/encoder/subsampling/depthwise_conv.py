"""The front-end of the Fast Conformer: depthwise convolutions that subsample by a factor of eight."""

from collections.abc import Iterable
from typing import Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.choice import wants_plain
from asr.base.kernels.depthwise import DepthwiseConv2d
from asr.base.kernels.dropout import Dropout
from asr.base.kernels.strided_conv import KERNEL_SIZE, PADDING, STRIDE, convolve_on, halved
from asr.base.settings.rule import Dim, Probability
from asr.interfaces import State
from asr.lengths import Lengths, padding_mask

NUM_STAGES = 3
BLOCK_FRAMES = 1_000  # maximum number of output frames that are computed at once without gradients: 80 s of audio


class DepthwiseConv(nn.Module):
    """Three 3x3 convolutions of stride 2 over (time, frequency), each followed by ReLU, and a linear layer.

    The second and third convolutions are separable: a depthwise convolution, followed by a pointwise convolution.

    *Source*: Rekesh et al. 2023 (Fast Conformer), arXiv:2305.05084, section 2. Both ends are padded with one zero
    frame, so that each convolution halves the number of frames, rounded up. Each convolution reads zeros after the end
    of an utterance.

    Args:
        num_channels: C, number of channels of each convolution.
        dropout: dropout after the linear layer.
    """

    stride = STRIDE**NUM_STAGES
    first_frames = stride
    look_ahead = 0

    def __init__(self, input_dim: int, output_dim: int, *, num_channels: Dim, dropout: Probability) -> None:
        super().__init__()
        self.input_dim, self.num_channels = input_dim, num_channels
        self.stages = nn.ModuleList([nn.Conv2d(1, num_channels, KERNEL_SIZE, STRIDE, PADDING)])
        for _ in range(NUM_STAGES - 1):
            depthwise = DepthwiseConv2d(num_channels, KERNEL_SIZE, STRIDE, PADDING)
            self.stages.append(nn.Sequential(depthwise, nn.Conv2d(num_channels, num_channels, 1)))
        self.linear = nn.Linear(num_channels * self.output_lengths(input_dim), output_dim)
        self.dropout = Dropout(dropout)

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, T, F), (B,) to (B, T', D), (B,); outputs at padded frames are finite even if the padding is not.

        Without gradients, long recordings are convolved in blocks, because the first convolution's output for an hour
        of audio has 7 GB.
        """
        if torch.is_grad_enabled() or wants_plain() or features.shape[1] <= BLOCK_FRAMES * self.stride:
            return self._convolve(features, feature_lengths)
        outs = []
        for begin in range(0, features.shape[1], BLOCK_FRAMES * self.stride):
            first = max(0, begin - self.stride)  # one output frame earlier; seven earlier feature frames are needed
            block, lengths = features[:, first : begin + BLOCK_FRAMES * self.stride], feature_lengths - first
            out, _ = self._convolve(block, lengths.clamp(min=0))
            outs.append(out[:, (begin - first) // self.stride :])
        return torch.cat(outs, dim=1), self.output_lengths(feature_lengths)

    def _convolve(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Compute all output frames in one pass."""
        x, lengths = features[:, None], feature_lengths  # (B, 1, T, F)
        for stage in self.stages:
            x = x.masked_fill(padding_mask(lengths, x.shape[2])[:, None, :, None], 0.0)
            x, lengths = F.relu(stage(x)), halved(lengths)  # (B, C, T / 2, F / 2), then T / 4, T / 8
        return self.dropout(self.linear(x.transpose(1, 2).flatten(2))), lengths

    @property
    def streaming(self) -> Self:
        """Return this object, which can continue from chunk to chunk."""
        return self

    def initial_state(self, batch: int) -> State:
        """Return the state of new streams: for each convolution, the frame of zeros before its first input frame."""
        state: State = {}
        channels, dim = 1, self.input_dim
        for number in range(NUM_STAGES):
            state[f"stages.{number}"] = self.linear.weight.new_zeros(batch, channels, 1, dim)
            channels, dim = self.num_channels, halved(dim)
        return state

    def step(
        self, features: Tensor, feature_lengths: Tensor, state: State, ahead: int = 0
    ) -> tuple[Tensor, Tensor, State]:
        """Continue streams; arguments and results as in `StreamingSubsampling`."""
        x, lengths = F.pad(features, (0, 0, 0, -features.shape[1] % self.stride))[:, None], feature_lengths
        next_state: State = {}
        for number, stage in enumerate(self.stages):
            name = f"stages.{number}"
            first, *pointwise = cast(Iterable[nn.Conv2d], stage if isinstance(stage, nn.Sequential) else [stage])
            x = x.masked_fill(padding_mask(lengths, x.shape[2])[:, None, :, None], 0.0)
            next_state[name] = x.narrow(2, x.shape[2] - ahead - 1, 1)
            x = convolve_on(x, state[name], first.weight, first.bias, first.groups)
            for conv in pointwise:
                x = conv(x)
            x, lengths, ahead = F.relu(x), halved(lengths), ahead // STRIDE
        return self.dropout(self.linear(x.transpose(1, 2).flatten(2))), lengths, next_state

    @staticmethod
    def output_lengths(feature_lengths: Lengths) -> Lengths:
        """Return the number of encoder frames T' for T feature frames."""
        return halved(halved(halved(feature_lengths)))
