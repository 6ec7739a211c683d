"""Gain augmentation: a louder or softer utterance."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from torch import Tensor

from asr.base.settings.rule import Fraction, span
from asr.components.augment.draws import happens, uniform


@dataclass
class Gain:
    """Scale an utterance by a random gain in dB.

    Samples are not clipped; they may exceed 1. Gain has almost no effect on features that are normalised per
    utterance, such as `utterance_cmvn`.

    Args:
        probability: probability of a gain for each utterance.
        gain_db: range of the gain, in dB.
    """

    stage = "waveform"
    max_added_seconds = 0.0

    sample_rate: int
    _: KW_ONLY
    probability: Fraction
    gain_db: Annotated[list[float], span(-60, 60)]

    def __call__(self, waveform: Tensor) -> Tensor:
        """Map (S,) to (S,)."""
        return waveform * 10 ** (uniform(self.gain_db) / 20) if happens(self.probability) else waveform
