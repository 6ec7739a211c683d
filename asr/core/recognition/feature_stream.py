"""Features of a waveform that arrives in pieces; the frames equal the frames of the whole waveform."""

from typing import NamedTuple

import torch
from torch import Tensor

from asr.interfaces import Features


class Remainder(NamedTuple):
    """Samples of a stream that later frames still need.

    Args:
        samples: samples that the next frames need, (S,).
        frames: number of frames that begin in `samples` and were already returned.
    """

    samples: Tensor = torch.zeros(0)
    frames: int = 0


def stream_features(
    features: Features, waveform: Tensor, remainder: Remainder, at_end: bool = False
) -> tuple[Tensor, Remainder]:
    """Compute the frames that another piece of a waveform completes.

    Frames that begin in the remainder and were already returned are computed again and discarded. The features need
    no state of their own: any features that define `samples_ahead` and `frames_before` can be streamed.

    Args:
        features: features with framewise normalisation.
        waveform: the piece, (S,), of any length.
        remainder: remainder of the earlier pieces.
        at_end: whether this is the last piece.

    Returns:
        The features (T, F) of the completed frames, and the next remainder.
    """
    samples, hop = torch.cat([remainder.samples, waveform]), features.hop
    complete = features.num_frames(len(samples))
    if not at_end:
        complete = min(complete, max(0, (len(samples) - features.samples_ahead) // hop + 1))
    if complete <= remainder.frames:
        return samples.new_zeros(0, features.dim), Remainder(samples, remainder.frames)
    frames = features(samples)[remainder.frames : complete]
    dropped = max(0, complete - features.frames_before) // 2 * 2  # even: some features round up to pairs of frames
    return frames, Remainder(samples[dropped * hop :].clone(), complete - dropped)
