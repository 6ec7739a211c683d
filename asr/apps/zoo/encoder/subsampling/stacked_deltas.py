"""A front-end that appends the deltas of the features, and concatenates neighbouring frames."""

from typing import Annotated

import torch
from torch import Tensor, nn

from asr.apps.zoo.encoder.subsampling.stacked_frames import grouped
from asr.base.settings.rule import whole
from asr.lengths import Lengths, padding_mask


class StackedDeltas(nn.Module):
    """Append each feature's delta, concatenate each `factor` frames, and apply a linear layer.

    A delta is half the difference of the features in the next and the previous frame; before the first frame and after
    the last one, these frames are repeated. Frames at the end that do not fill an encoder frame are left out:
    T' = floor(T / factor).

    *Source*: transformers' GraniteSpeech5FeatureExtractor, whose `factor` is 2.

    Args:
        factor: number of feature frames of an encoder frame.
    """

    streaming = None

    def __init__(self, input_dim: int, output_dim: int, *, factor: Annotated[int, whole(1, 100)]) -> None:
        super().__init__()
        self.stride = factor
        self.linear = nn.Linear(2 * factor * input_dim, output_dim)

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, T, F), (B,) to (B, T', D), (B,); without a whole encoder frame, T' is 1, and the frame is padding."""
        padding = padding_mask(feature_lengths, features.shape[1])
        x = torch.cat([features, deltas(features, padding)], dim=2).masked_fill(padding[:, :, None], 0.0)  # (B, T, 2F)
        return self.linear(grouped(x, self.stride).flatten(2)), self.output_lengths(feature_lengths)

    def output_lengths(self, feature_lengths: Lengths) -> Lengths:
        """Return the number of encoder frames T' for T feature frames."""
        return feature_lengths // self.stride


def deltas(features: Tensor, padding_mask: Tensor) -> Tensor:
    """Compute the deltas of features (B, T, F) with padding_mask (B, T); those of padded frames may be anything."""
    before = torch.cat([features[:, :1], features[:, :-1]], dim=1)
    after = torch.cat([features[:, 1:], features[:, -1:]], dim=1)
    ends = torch.cat([padding_mask[:, 1:], padding_mask[:, -1:]], dim=1)  # whether the next frame is padding
    return (torch.where(ends[:, :, None], features, after) - before) / 2
