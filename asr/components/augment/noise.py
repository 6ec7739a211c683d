"""Noise augmentation: recordings mixed in at a random signal-to-noise ratio."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

import torch
from torch import Tensor

from asr.base.settings.rule import PATH, Fraction, span, whole
from asr.components.augment.draws import below, happens, uniform
from asr.interfaces import Recordings


@dataclass
class Noise:
    """Add segments of one or several noise recordings; several speech recordings make babble.

    The signal-to-noise ratio compares mean squares over the whole utterance, including pauses. Several recordings are
    mixed at equal power. Samples are not clipped. A silent utterance stays silent, and silent noise changes nothing.

    *Source*: Ko et al. 2017, "A study on data augmentation of reverberant speech", section 3; babble of 3 to 7
    speakers: Snyder et al. 2018, "X-vectors", section 3.3.

    Args:
        recordings: a folder of audio, or a manifest. A recording shorter than the utterance is repeated.
        probability: probability of noise for each utterance.
        snr_db: range of the signal-to-noise ratio, in dB.
        max_recordings: maximum number of recordings mixed at once; the number is drawn between 1 and this maximum.
    """

    stage = "waveform"
    max_added_seconds = 0.0

    sample_rate: int
    _: KW_ONLY
    recordings: Annotated[Recordings, PATH]
    probability: Fraction
    snr_db: Annotated[list[float], span(-50, 100)]
    max_recordings: Annotated[int, whole(1, 100)]

    def __call__(self, waveform: Tensor) -> Tensor:
        """Map (S,) to (S,)."""
        if not happens(self.probability):
            return waveform
        noise = torch.zeros_like(waveform)
        for _ in range(1 + below(self.max_recordings)):
            index, begin = below(len(self.recordings)), uniform((0, 1))
            segment = self.recordings.segment(index, self.sample_rate, len(waveform), begin)
            noise += segment / segment.square().mean().sqrt().clamp(min=torch.finfo(segment.dtype).tiny)
        power = waveform.square().mean() / 10 ** (uniform(self.snr_db) / 10)
        loudness = noise.square().mean()
        return waveform + noise * (power / loudness).sqrt() if loudness > 0 else waveform
