"""The front-end of the streaming Fast Conformer: causal convolutions that subsample by a factor of eight."""

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.choice import wants_plain
from asr.base.kernels.depthwise import DepthwiseConv2d
from asr.base.kernels.dropout import Dropout
from asr.base.kernels.strided_conv import KERNEL_SIZE, STRIDE
from asr.base.settings.rule import Dim, Probability
from asr.components.encoder.subsampling.depthwise_conv import BLOCK_FRAMES, NUM_STAGES
from asr.interfaces import State
from asr.lengths import Lengths, padding_mask

BEFORE, AFTER = KERNEL_SIZE - 1, STRIDE - 1  # zeros at both ends of the time and of the frequency axis


class CausalConv(nn.Module):
    """Three 3x3 convolutions of stride 2 over (time, frequency), each followed by ReLU, and a linear layer.

    The second and third convolutions are separable, as in `DepthwiseConv`. Encoder frame n depends on the feature
    frames up to 8 n: the first encoder frame of a stream needs one feature frame, each later one needs eight more.

    *Source*: Noroozi et al. 2024, arXiv:2312.17279, section 3. As in NVIDIA NeMo (`causal_downsampling`), the input of
    each convolution has two zeros before and one zero after it, in time and in frequency, so that a convolution maps L
    frames to L // 2 + 1, and so that an utterance can have one encoder frame more than ceil(T / 8). Each convolution
    reads zeros after the end of an utterance.

    Args:
        num_channels: C, number of channels of each convolution.
        dropout: dropout after the linear layer.
    """

    stride = STRIDE**NUM_STAGES
    first_frames = 1
    look_ahead = 0

    def __init__(self, input_dim: int, output_dim: int, *, num_channels: Dim, dropout: Probability) -> None:
        super().__init__()
        self.input_dim, self.num_channels = input_dim, num_channels
        self.stages = nn.ModuleList([nn.Conv2d(1, num_channels, KERNEL_SIZE, STRIDE)])
        for _ in range(NUM_STAGES - 1):
            depthwise = DepthwiseConv2d(num_channels, KERNEL_SIZE, STRIDE, padding=0)
            self.stages.append(nn.Sequential(depthwise, nn.Conv2d(num_channels, num_channels, 1)))
        self.linear = nn.Linear(num_channels * self.output_lengths(input_dim), output_dim)
        self.dropout = Dropout(dropout)

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, T, F), (B,) to (B, T', D), (B,); outputs at padded frames are finite even if the padding is not.

        Without gradients, long recordings are convolved in blocks, as the chunks of a stream; this limits the memory.
        """
        block = BLOCK_FRAMES * self.stride
        if torch.is_grad_enabled() or wants_plain() or features.shape[1] <= block:
            return self._convolve(features, feature_lengths)
        unread = self.stride - self.first_frames
        x, state, outs = F.pad(features, (0, 0, unread, 0)), self.initial_state(len(features)), []
        for begin in range(0, x.shape[1], block):
            lengths = (feature_lengths + unread - begin).clamp(0, block)
            out, _, state = self.step(x[:, begin : begin + block], lengths, state)
            outs.append(out)
        return torch.cat(outs, dim=1), self.output_lengths(feature_lengths)

    def _convolve(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Compute all output frames in one pass."""
        x, lengths = features[:, None], feature_lengths  # (B, 1, T, F)
        for stage in self.stages:
            x = x.masked_fill(padding_mask(lengths, x.shape[2])[:, None, :, None], 0.0)
            x = F.relu(stage(F.pad(x, (BEFORE, AFTER, BEFORE, AFTER))))  # (B, C, T / 2, F / 2), then T / 4, T / 8
            lengths = _halved(lengths)
        return self.dropout(self.linear(x.transpose(1, 2).flatten(2))), lengths

    @property
    def streaming(self) -> Self:
        """Return this object, which can continue from chunk to chunk."""
        return self

    def initial_state(self, batch: int) -> State:
        """Return the state of new streams.

        It has the frame before each convolution's input, and `begun`: 0 before the first step, then 1.
        """
        state: State = {}
        channels, dim, weight = 1, self.input_dim, self.linear.weight
        for number in range(NUM_STAGES):
            state[f"stages.{number}"] = weight.new_zeros(batch, channels, 1, dim)
            channels, dim = self.num_channels, _halved(dim)
        return state | {"begun": torch.zeros(batch, dtype=torch.int64, device=weight.device)}

    def step(
        self, features: Tensor, feature_lengths: Tensor, state: State, ahead: int = 0
    ) -> tuple[Tensor, Tensor, State]:
        """Continue streams; arguments and results as in `StreamingSubsampling`.

        The frames of a stream's first step begin with `stride - first_frames` frames that are not read. The first chunk
        therefore has the length of the others, and new streams can join a batch.
        """
        x, lengths = F.pad(features, (0, 0, 0, -features.shape[1] % self.stride))[:, None], feature_lengths
        absent = (1 - state["begun"]) * (self.stride - self.first_frames)  # frames before the stream's first frame
        next_state: State = {"begun": torch.ones_like(state["begun"])}
        for number, stage in enumerate(self.stages):
            name, frames = f"stages.{number}", x.shape[2]
            hidden = padding_mask(lengths, frames) | ~padding_mask(absent, frames)
            x = x.masked_fill(hidden[:, None, :, None], 0.0)
            next_state[name] = x.narrow(2, frames - ahead - 1, 1)
            x = F.relu(stage(F.pad(torch.cat([state[name], x], dim=2), (BEFORE, AFTER))))
            lengths, absent, ahead = (lengths + 1) // STRIDE, absent // STRIDE, ahead // STRIDE
        return self.dropout(self.linear(x.transpose(1, 2).flatten(2))), lengths, next_state

    @staticmethod
    def output_lengths(feature_lengths: Lengths) -> Lengths:
        """Return the number of encoder frames T' for T feature frames."""
        return _halved(_halved(_halved(feature_lengths)))


def _halved(lengths: Lengths) -> Lengths:
    """Return the number of outputs of one convolution; 0 for an empty input."""
    return (lengths // STRIDE + 1) * (lengths > 0)
