"""Edge augmentation: silence or low noise before and after the utterance."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

import torch
from torch import Tensor

from asr.base.settings.rule import Fraction, number, span
from asr.components.augment.draws import happens, uniform


@dataclass
class Edges:
    """Add silence or low white noise before and after an utterance.

    The utterance grows by up to twice `max_seconds`; the batch plan reserves that duration.

    Args:
        probability: probability of edges for each utterance.
        max_seconds: maximum length of each edge; the length is drawn between 0 and this maximum.
        noise_probability: probability of noise for each edge; otherwise the edge is digital silence.
        noise_db: range of the noise level, in dB relative to a mean square of 1.
    """

    stage = "waveform"

    sample_rate: int
    _: KW_ONLY
    probability: Fraction
    max_seconds: Annotated[float, number(0, 60)]
    noise_probability: Fraction
    noise_db: Annotated[list[float], span(-120, 0)]

    @property
    def max_added_seconds(self) -> float:
        """The maximum number of seconds that this augmentation adds to an utterance."""
        return 2 * self.max_seconds if self.probability else 0.0

    def __call__(self, waveform: Tensor) -> Tensor:
        """Map (S,) to (S',): the utterance with both edges."""
        if not happens(self.probability):
            return waveform
        before, after = self._edge(), self._edge()
        return torch.cat([before, waveform, after])

    def _edge(self) -> Tensor:
        edge = torch.zeros(int(uniform((0, self.max_seconds)) * self.sample_rate))
        if happens(self.noise_probability):
            edge = torch.randn(len(edge)) * 10 ** (uniform(self.noise_db) / 20)
        return edge
