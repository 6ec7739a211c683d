"""Speed perturbation: faster or slower speech, with a changed pitch."""

import math
from typing import Annotated

from torch import Tensor
from torchaudio.transforms import Speed

from asr.errors import InputError
from asr.lengths import Lengths
from asr.settings.rule import list_of, number

MAX_KERNEL_SIZE = 1 << 24  # elements of a resampling kernel: 64 MiB
FACTORS = "of speeds from 0.1 to 10, such as [0.9, 1.0, 1.1]"


class SpeedPerturb:
    """Play an utterance faster or slower by a factor.

    *Source*: Ko et al. 2015, "Audio augmentation for speech recognition".

    The batch plan draws the factor, because the factor changes the durations, and batches are limited by duration.

    Args:
        sample_rate: Hz.
        factors: speeds to draw from, each equally likely.
    """

    stage = "plan"

    def __init__(
        self, sample_rate: int, *, factors: Annotated[list[float], list_of(number(0.1, 10), FACTORS, 1, 100)]
    ) -> None:
        for factor in factors:
            source = int(factor * sample_rate)
            if source * sample_rate // math.gcd(source, sample_rate) ** 2 > MAX_KERNEL_SIZE:
                must = f"augment.speed_perturb.factors must be ratios of small numbers at {sample_rate} Hz, such as 0.9"
                raise InputError(f"{must}; got {factor}.")
        self.factors = tuple(factors)
        self._speeds = {factor: Speed(sample_rate, factor) for factor in self.factors if factor != 1.0}

    def __call__(self, waveform: Tensor, factor: float) -> Tensor:
        """Map (S,) to (`num_samples(S, factor)`,)."""
        return waveform if factor == 1.0 else self._speeds[factor](waveform)[0]

    def num_samples(self, num_samples: Lengths, factor: float) -> Lengths:
        """Return the length of utterances of `num_samples` samples (an int or a tensor) after the change of speed."""
        if factor == 1.0:
            return num_samples
        speed = self._speeds[factor]
        return -(-num_samples * speed.target_sample_rate // speed.source_sample_rate)  # rounded up
