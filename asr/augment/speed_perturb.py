"""Speed perturbation: the same words faster or slower, pitch included."""

from collections.abc import Sequence

from torch import Tensor
from torchaudio.transforms import Speed

from asr.lengths import Lengths


class SpeedPerturb:
    """Play an utterance at a factor of its speed.

    *Source*: Ko et al. 2015, "Audio augmentation for speech recognition".

    The batch plan draws the factor, since it changes the duration by which batches are bounded.

    Args:
        sample_rate: Hz.
        factors: speeds to draw from, each equally likely.
    """

    stage = "plan"

    def __init__(self, sample_rate: int, *, factors: Sequence[float]) -> None:
        self.factors = tuple(factors)
        self._speeds = {factor: Speed(sample_rate, factor) for factor in self.factors if factor != 1.0}

    def __call__(self, waveform: Tensor, factor: float) -> Tensor:
        """Waveform (S,) to one of `num_samples(S, factor)` samples."""
        return waveform if factor == 1.0 else self._speeds[factor](waveform)[0]

    def num_samples(self, num_samples: Lengths, factor: float) -> Lengths:
        """Count the samples that are left of `num_samples` (an int, or a tensor of them) at `factor`."""
        if factor == 1.0:
            return num_samples
        speed = self._speeds[factor]
        return -(-num_samples * speed.target_sample_rate // speed.source_sample_rate)  # rounded up
