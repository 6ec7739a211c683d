"""The convolutional front-end: four feature frames to one encoder frame."""

import torch.nn.functional as F
from torch import Tensor, nn

from asr.lengths import Lengths, padding_mask, strided_lengths

KERNEL_SIZE, STRIDE, PADDING = 3, 2, 1


class StridedConv(nn.Module):
    """Two 3x3 convolutions of stride 2 over (time, frequency), each with ReLU, then a linear layer.

    *Source*: Gulati et al. 2020, arXiv:2005.08100, section 2.1. Ends are padded with one zero frame, so that
    T' = ceil(ceil(T / 2) / 2); what lies behind an utterance's end is zeroed before each convolution.

    Args:
        input_dim: F.
        output_dim: D.
        num_channels: of both convolutions.
        dropout: after the linear layer.
    """

    stride = STRIDE * STRIDE

    def __init__(self, input_dim: int, output_dim: int, *, num_channels: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, num_channels, KERNEL_SIZE, STRIDE, PADDING)
        self.conv2 = nn.Conv2d(num_channels, num_channels, KERNEL_SIZE, STRIDE, PADDING)
        self.linear = nn.Linear(num_channels * _halved(_halved(input_dim)), output_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F), (B,) to (B, T', D), (B,). Frames behind an utterance's end come out finite, whatever went in."""
        x, lengths = features[:, None], feature_lengths  # (B, 1, T, F)
        for conv in (self.conv1, self.conv2):
            x = x.masked_fill(padding_mask(lengths, x.shape[2])[:, None, :, None], 0.0)
            x = F.relu(conv(x))  # (B, C, T/2, F/2), then (B, C, T/4, F/4)
            lengths = _halved(lengths)
        x = x.transpose(1, 2).flatten(2)  # (B, T', C * F/4)
        return self.dropout(self.linear(x)), lengths

    @staticmethod
    def output_lengths(feature_lengths: Lengths) -> Lengths:
        """Frames T' that T feature frames give."""
        return _halved(_halved(feature_lengths))


def _halved(lengths: Lengths) -> Lengths:
    return strided_lengths(lengths, kernel_size=KERNEL_SIZE, stride=STRIDE, padding=PADDING)
