"""A front-end of one-dimensional convolutions without padding, as in MedASR."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.base.settings.rule import Dim, Probability
from asr.lengths import Lengths, padding_mask, strided_lengths

KERNEL_SIZE, STRIDE = 5, 2  # of both convolutions
FIRST = KERNEL_SIZE + STRIDE * (KERNEL_SIZE - 1)  # feature frames of an encoder frame: 13


class UnpaddedConv(nn.Module):
    """A linear layer, two convolutions of stride 2 over frames, each followed by ReLU, and a linear layer.

    The convolutions have no padding, so that an encoder frame needs 13 feature frames: T' = floor((T - 9) / 4).

    *Source*: transformers' LasrEncoderSubsampling.

    Args:
        num_channels: number of channels after the second convolution; the first has D.
        dropout: dropout after the last linear layer.
    """

    stride = STRIDE * STRIDE
    streaming = None

    def __init__(self, input_dim: int, output_dim: int, *, num_channels: Dim, dropout: Probability) -> None:
        super().__init__()
        self.linear1 = nn.Linear(input_dim, output_dim)
        self.conv1 = nn.Conv1d(output_dim, output_dim, KERNEL_SIZE, STRIDE)
        self.conv2 = nn.Conv1d(output_dim, num_channels, KERNEL_SIZE, STRIDE)
        self.linear2 = nn.Linear(num_channels, output_dim)
        self.dropout = Dropout(dropout)

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, T, F), (B,) to (B, T', D), (B,); without a whole encoder frame, T' is 1, and the frame is padding."""
        # Always padded and cut: an exported program, too, has a frame for an utterance that is too short for one.
        frames = torch.sym_max(1, (features.shape[1] - FIRST) // self.stride + 1)
        x = features.masked_fill(padding_mask(feature_lengths, features.shape[1])[:, :, None], 0.0)
        x = F.relu(self.linear1(F.pad(x, (0, 0, 0, FIRST - 1)))).transpose(1, 2)  # (B, D, T + 12)
        x = F.relu(self.conv2(F.relu(self.conv1(x)))).transpose(1, 2).narrow(1, 0, frames)  # (B, T', C)
        return self.dropout(self.linear2(x.contiguous())), self.output_lengths(feature_lengths)

    @staticmethod
    def output_lengths(feature_lengths: Lengths) -> Lengths:
        """Return the number of encoder frames T' for T feature frames."""
        for _ in range(2):
            feature_lengths = strided_lengths(feature_lengths, kernel_size=KERNEL_SIZE, stride=STRIDE, padding=0)
        return feature_lengths
