"""Speed perturbation: faster or slower speech, with a changed pitch."""

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.base.settings.rule import list_of, number
from asr.errors import InputError
from asr.lengths import Lengths

MAX_KERNEL_SIZE = 1 << 24  # elements of a resampling kernel: 64 MiB
ZERO_CROSSINGS, ROLLOFF = 6, 0.99  # width and cutoff of the interpolating filter: torchaudio's defaults
FACTORS = "of speeds from 0.1 to 10, such as [0.9, 1.0, 1.1]"


class SpeedPerturb:
    """Play an utterance faster or slower by a factor.

    *Source*: Ko et al. 2015, "Audio augmentation for speech recognition".

    The batch plan draws the factor, because the factor changes the durations, and batches are limited by duration.

    Args:
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
        self._speeds = {factor: _Speed(sample_rate, factor) for factor in self.factors if factor != 1.0}

    def __call__(self, waveform: Tensor, factor: float) -> Tensor:
        """Map (S,) to (`num_samples(S, factor)`,)."""
        return waveform if factor == 1.0 else self._speeds[factor](waveform)

    def num_samples(self, num_samples: Lengths, factor: float) -> Lengths:
        """Return the length of utterances of `num_samples` samples (an int or a tensor) after the change of speed."""
        if factor == 1.0:
            return num_samples
        return self._speeds[factor].num_samples(num_samples)


class _Speed:
    """Resample from `factor` times the sample rate to the sample rate, with a sinc filter under a Hann window.

    *Source*: Smith, "Digital Audio Resampling", https://ccrma.stanford.edu/~jos/resample. The samples are those of
    torchaudio.transforms.Speed, bit for bit.
    """

    def __init__(self, sample_rate: int, factor: float) -> None:
        source = int(factor * sample_rate)
        divisor = math.gcd(source, sample_rate)
        self.source, self.target = source // divisor, sample_rate // divisor
        cutoff = min(self.source, self.target) * ROLLOFF
        self.width = math.ceil(ZERO_CROSSINGS * self.source / cutoff)
        inputs = torch.arange(-self.width, self.width + self.source, dtype=torch.float64)[None, None] / self.source
        outputs = torch.arange(0, -self.target, -1)[:, None, None] / self.target
        crossings = ((outputs + inputs) * cutoff).clamp(-ZERO_CROSSINGS, ZERO_CROSSINGS)
        window = torch.cos(crossings * math.pi / ZERO_CROSSINGS / 2) ** 2 * (cutoff / self.source)
        phase = crossings * math.pi
        sinc = torch.where(phase == 0, 1.0, phase.sin() / phase)
        self.kernels = (sinc * window).float()  # (target, 1, 2 width + source)

    def __call__(self, waveform: Tensor) -> Tensor:
        """Map (S,) to (`num_samples(S)`,)."""
        padded = F.pad(waveform[None, None], (self.width, self.width + self.source))
        out = F.conv1d(padded, self.kernels, stride=self.source)  # (1, target, periods)
        return out[0].T.reshape(-1)[: self.num_samples(len(waveform))]

    def num_samples(self, num_samples: Lengths) -> Lengths:
        """Return the number of samples after the change of speed, rounded up."""
        return -(-num_samples * self.target // self.source)
