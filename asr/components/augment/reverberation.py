"""Reverberation augmentation with recorded room impulse responses."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from torch import Tensor

from asr.base.audio.reverberate import reverberate
from asr.base.settings.rule import PATH, Fraction
from asr.components.augment.draws import below, happens
from asr.interfaces import Recordings


@dataclass
class Reverberation:
    """Convolve an utterance with a recorded impulse response.

    The direct sound (the largest sample of the response) is not delayed, and the power of the utterance does not
    change.

    *Source*: Ko et al. 2017, "A study on data augmentation of reverberant speech".

    Args:
        recordings: impulse responses, as a folder of audio or a manifest.
        probability: probability of reverberation for each utterance.
    """

    stage = "waveform"
    max_added_seconds = 0.0

    sample_rate: int
    _: KW_ONLY
    probability: Fraction
    recordings: Annotated[Recordings, PATH]

    def __call__(self, waveform: Tensor) -> Tensor:
        """Map (S,) to (S,)."""
        if not happens(self.probability):
            return waveform
        response = self.recordings.whole(below(len(self.recordings)), self.sample_rate)
        return reverberate(waveform, response, int(response.abs().argmax()))
