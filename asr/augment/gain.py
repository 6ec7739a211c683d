"""Gain: the utterance louder or softer."""

from typing import Annotated

from torch import Tensor

from asr.augment.draws import happens, uniform
from asr.settings.rule import Fraction, span


class Gain:
    """Scale an utterance by a random number of dB.

    Nothing is clipped: samples may lie beyond 1. Features that are normalised by utterance, as `utterance_cmvn`, hardly
    know the difference.

    Args:
        sample_rate: Hz.
        probability: of another loudness, for each utterance.
        gain_db: between which it is drawn, in dB.
    """

    stage = "waveform"
    max_added_seconds = 0.0

    def __init__(
        self, sample_rate: int, *, probability: Fraction, gain_db: Annotated[list[float], span(-60, 60)]
    ) -> None:
        self.probability = probability
        self.gain_db = gain_db

    def __call__(self, waveform: Tensor) -> Tensor:
        """(S,) to (S,)."""
        return waveform * 10 ** (uniform(self.gain_db) / 20) if happens(self.probability) else waveform
