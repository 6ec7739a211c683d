"""Features of a waveform that comes in pieces: frame by frame what they are of the whole."""

from typing import NamedTuple

import torch
from torch import Tensor

from asr.interfaces import Features


class Remainder(NamedTuple):
    """What a stream keeps of the samples that it heard.

    Args:
        samples: from the first that a coming frame needs, (S,).
        frames: that begin in them, and were given already.
    """

    samples: Tensor = torch.zeros(0)
    frames: int = 0


def stream_features(
    features: Features, waveform: Tensor, remainder: Remainder, at_end: bool = False
) -> tuple[Tensor, Remainder]:
    """Compute the frames that another piece of a waveform completes.

    What lies in front of a frame and is heard in it is computed once more, so that nothing here knows how features
    are made: they say how far they see.

    Args:
        features: whose normalisation is framewise.
        waveform: the piece, (S,); of any length.
        remainder: of the pieces before.
        at_end: whether it is the last.

    Returns:
        (T, F), and the remainder behind.
    """
    samples, hop = torch.cat([remainder.samples, waveform]), features.hop
    complete = features.num_frames(len(samples))
    if not at_end:
        complete = min(complete, max(0, (len(samples) - features.samples_ahead) // hop + 1))
    if complete <= remainder.frames:
        return samples.new_zeros(0, features.dim), Remainder(samples, remainder.frames)
    frames = features(samples)[remainder.frames : complete]
    dropped = max(0, complete - features.frames_before)
    return frames, Remainder(samples[dropped * hop :].clone(), complete - dropped)
