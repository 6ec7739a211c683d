"""A convolutional front-end that subsamples by a factor of four."""

from typing import Self, cast

import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.base.kernels.strided_conv import KERNEL_SIZE, PADDING, STRIDE, convolve_on, convolve_twice, halved
from asr.base.settings.rule import Dim, Probability
from asr.interfaces import State
from asr.lengths import Lengths, padding_mask


class StridedConv(nn.Module):
    """Two 3x3 convolutions of stride 2 over (time, frequency), each followed by ReLU, and a linear layer.

    *Source*: Gulati et al. 2020, arXiv:2005.08100, section 2.1. Both ends are padded with one zero frame, so that
    T' = ceil(ceil(T / 2) / 2). Each convolution reads zeros after the end of an utterance.

    Args:
        num_channels: C, number of channels of each convolution.
        dropout: dropout after the linear layer.
    """

    stride = STRIDE * STRIDE
    first_frames = stride  # feature frames that the first encoder frame of a stream needs
    look_ahead = 0
    reads_weights_of = ("linear",)  # its weights are read without calling it, so an adapter would have no effect

    def __init__(self, input_dim: int, output_dim: int, *, num_channels: Dim, dropout: Probability) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.conv1 = nn.Conv2d(1, num_channels, KERNEL_SIZE, STRIDE, PADDING)
        self.conv2 = nn.Conv2d(num_channels, num_channels, KERNEL_SIZE, STRIDE, PADDING)
        self.linear = nn.Linear(num_channels * halved(halved(input_dim)), output_dim)
        self.dropout = Dropout(dropout)

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, T, F), (B,) to (B, T', D), (B,); outputs at padded frames are finite even if the padding is not."""
        bias1, bias2 = (cast(Tensor, conv.bias) for conv in (self.conv1, self.conv2))
        x = convolve_twice(features, feature_lengths, self.conv1.weight, bias1, self.conv2.weight, bias2)
        weight = self.linear.weight.unflatten(1, (len(bias2), -1)).transpose(1, 2).flatten(1)  # input order (F / 4, C)
        return self.dropout(F.linear(x.flatten(2), weight, self.linear.bias)), self.output_lengths(feature_lengths)

    @property
    def streaming(self) -> Self:
        """Return this object, which can continue from chunk to chunk."""
        return self

    def initial_state(self, batch: int) -> State:
        """Return the state of new streams: for each convolution, the frame of zeros before its first input frame."""
        zeros = self.conv1.weight.new_zeros
        dim, channels = self.input_dim, self.conv1.out_channels
        return {"conv1": zeros(batch, 1, 1, dim), "conv2": zeros(batch, channels, 1, halved(dim))}

    def step(
        self, features: Tensor, feature_lengths: Tensor, state: State, ahead: int = 0
    ) -> tuple[Tensor, Tensor, State]:
        """Continue streams; arguments and results as in `StreamingSubsampling`."""
        x, lengths = F.pad(features, (0, 0, 0, -features.shape[1] % self.stride))[:, None], feature_lengths
        next_state: State = {}
        for name, conv in (("conv1", self.conv1), ("conv2", self.conv2)):
            x = x.masked_fill(padding_mask(lengths, x.shape[2])[:, None, :, None], 0.0)
            next_state[name] = x.narrow(2, x.shape[2] - ahead - 1, 1)
            x = F.relu(convolve_on(x, state[name], conv.weight, conv.bias))
            lengths, ahead = halved(lengths), ahead // STRIDE
        return self.dropout(self.linear(x.transpose(1, 2).flatten(2))), lengths, next_state

    @staticmethod
    def output_lengths(feature_lengths: Lengths) -> Lengths:
        """Return the number of encoder frames T' for T feature frames."""
        return halved(halved(feature_lengths))
