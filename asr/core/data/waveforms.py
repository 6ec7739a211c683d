"""Examples without features, for runs that compute the features of a whole batch on the model's device.

A worker loads the audio, augments the waveform and draws the masks as usual, but returns waveform and masks instead of
features. The masks are therefore the same as if the worker computed the features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from asr.core.data.batch import Batch, Example, Rejected, batch_without_features, on_device, page_locked, views_of
from asr.core.data.dataset import Augmentation
from asr.core.data.labels import NO_LABELS, Labels
from asr.errors import InputError
from asr.interfaces import Features, Masks


@dataclass(frozen=True, slots=True)
class Unfeatured:
    """A placeholder for an utterance's features (T, F).

    Args:
        waveform: waveform of the utterance, (S,).
        num_frames: number of frames T that the features will have.
        masks: rectangles of the features to set to 0, (M, 4), drawn by `Masks.draw`.
    """

    waveform: Tensor
    num_frames: int
    masks: Tensor

    def __len__(self) -> int:
        return self.num_frames


class WaveformFeatures:
    """A substitute for a dataset's `features` that stores the waveform and computes only the number of frames."""

    def __init__(self, features: Features) -> None:
        self.sample_rate = features.sample_rate
        self._num_frames: Callable[[int], int] = features.num_frames

    def __call__(self, waveform: Tensor) -> Unfeatured:
        """Map a waveform (S,) to the placeholder for its features."""
        return Unfeatured(waveform, self._num_frames(len(waveform)), torch.zeros(0, 4, dtype=torch.int64))


@dataclass(frozen=True)
class DrawnMasks:
    """A substitute for an augmentation of features that draws masks without applying them."""

    masks: Masks
    dim: int

    def __call__(self, unfeatured: Unfeatured) -> Unfeatured:
        """Draw masks, and append their rectangles to the placeholder's `masks`."""
        drawn = self.masks.draw(unfeatured.num_frames, self.dim)
        return replace(unfeatured, masks=torch.cat([unfeatured.masks, drawn]))


def without_features(augmentation: Augmentation, dim: int) -> Augmentation:
    """Return a copy of an augmentation that draws the masks of features without applying them."""
    drawn: list[Any] = []
    for augment in augmentation.features:
        if augment.masks is None:
            must = "data.features_on must be cpu if an augmentation of features is not a mask"
            raise InputError(f"{must}; got {type(augment).__name__}.")
        drawn.append(DrawnMasks(augment.masks, dim))
    return replace(augmentation, features=drawn)


@dataclass(frozen=True, slots=True)
class WaveformBatch:
    """A batch of utterances without features.

    Shapes: waveforms (B, S), sample_counts (B,); masks (views * B, M, 4): the first view of all utterances, then the
    second view of all utterances. The features will have `num_frames` frames, including padding; `rest` contains the
    other fields of the batch.
    """

    waveforms: Tensor
    sample_counts: Tensor
    masks: Tensor
    num_frames: int
    rest: Batch

    to = on_device
    pin_memory = page_locked

    def __len__(self) -> int:
        return len(self.rest)

    def featurised(self, front_end: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Batch:
        """Compute the features on the device of the tensors.

        Args:
            front_end: converts waveforms (B, S) and sample_counts (B,) to features (B, T, F) and feature_lengths (B,).
        """
        if len(self) == 0:
            features, lengths = self.waveforms.new_zeros(0, 0, 0), self.sample_counts
        else:
            features, lengths = front_end(self.waveforms, self.sample_counts)
            features = F.pad(features, (0, 0, 0, self.num_frames - features.shape[1]))  # negative padding crops
            views = len(self.masks) // len(self)
            features, lengths = masked(features.repeat(views, 1, 1), self.masks), lengths.repeat(views)
        return replace(self.rest, features=features, feature_lengths=lengths)


def masked(features: Tensor, masks: Tensor) -> Tensor:
    """Set the rectangles (B, M, 4) of features (B, T, F) to 0."""
    frame, bin_ = (torch.arange(size, device=features.device) for size in features.shape[1:])
    inside = torch.zeros_like(features, dtype=torch.bool)
    for mask in masks.unbind(dim=1):
        first_frame, end_frame, first_bin, end_bin = mask.split(1, dim=1)  # (B, 1) each
        rows = (frame >= first_frame) & (frame < end_frame)  # (B, T)
        columns = (bin_ >= first_bin) & (bin_ < end_bin)  # (B, F)
        inside |= rows[:, :, None] & columns[:, None, :]
    return features.masked_fill(inside, 0.0)


def collate_waveforms(examples: Sequence[Example | Rejected], labels: Labels = NO_LABELS) -> WaveformBatch:
    """Make a batch without features; the batch lists rejected utterances separately."""
    rest = batch_without_features(examples, labels)
    views: list[Unfeatured] = views_of(examples)
    first = views[: len(rest)]
    waveforms = [view.waveform for view in first]
    return WaveformBatch(
        waveforms=pad_sequence(waveforms, batch_first=True) if first else torch.zeros(0, 0),
        sample_counts=torch.tensor([len(waveform) for waveform in waveforms], dtype=torch.int64),
        masks=torch.stack([view.masks for view in views]) if views else torch.zeros(0, 0, 4).long(),
        num_frames=max((view.num_frames for view in first), default=0),
        rest=replace(rest, num_frames=tuple(view.num_frames for view in views)),
    )
