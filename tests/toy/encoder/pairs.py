"""Two linear layers over two frames."""

import torch
from torch import nn

from asr.interfaces import NO_TAPS, Encoded


class Pairs(nn.Module):
    """Map each two frames to an encoder frame."""

    stride = 2
    streaming = None

    def __init__(self, input_dim, *, dim):
        super().__init__()
        self.output_dim = dim
        self.layers = nn.Sequential(nn.Linear(2 * input_dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def named_blocks(self):
        return []

    def output_lengths(self, feature_lengths):
        return feature_lengths // 2

    def forward(self, features, feature_lengths, taps=NO_TAPS):
        count = features.shape[1] // 2
        lengths = self.output_lengths(feature_lengths)
        padding = torch.arange(count) >= lengths[:, None]
        stacked = features[:, : 2 * count].reshape(len(features), count, -1).masked_fill(padding[:, :, None], 0.0)
        return Encoded(self.layers(stacked), lengths, {})
