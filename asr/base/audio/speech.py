"""Detect silence and steady sounds, which bypass the network because it might recognise words in them."""

from itertools import pairwise

import torch
from torch import Tensor

MIN_SECONDS = 1.0  # shorter recordings always pass, because they may be a single speech sound, which is steady
FRAME_SECONDS = 0.256  # long enough to separate the harmonics of a 50 Hz hum, so that speech shows between them
HOP_SECONDS = 0.064
SMOOTHED_FRAMES = 2  # averaging this many frames reduces the beats of tones and the variation of noise
BANDS = (100, 300, 600, 1000, 1500, 2200, 3200)  # edges of frequency bands in Hz; speech stands out in at least one
# A floor is added to the power, so that leakage from other bins and rounding errors do not count as changes.
CHANGING_FLOOR = 1e-3  # part of the floor, as a fraction of the power that changes over time
STEADY_FLOOR = 1e-8  # part of the floor, as a fraction of the total power: leakage of a steady tone has this size
QUIET = 0.1  # fraction of the frames that count as quiet
# Minimum by which the loudest frame of a band must exceed its quiet frames. Measured: at most 4 dB for noise and tones;
# 13 dB for speech in equally loud pink noise; 8 dB for speech 40 dB below a hum.
MIN_RISE_DB = 6.0


def may_hold_speech(waveform: Tensor, sample_rate: int) -> bool:
    """Return whether a recording (S,) may contain speech; if in doubt, return True.

    The level of speech changes: in at least one frequency band it rises far above the level between words. Silence,
    hiss, tones, hum, and noise outside the frequencies of speech do not change like this. The level of each band is
    measured in two ways: as the power of its bins, and as the power of its bins after each bin is divided by its mean
    over time. In the second measure, a steady tone of any loudness hides speech only in the bins of the tone.
    Music and clicks change like speech; only the network can reject them.
    """
    frame, hop = round(FRAME_SECONDS * sample_rate), round(HOP_SECONDS * sample_rate)
    if len(waveform) < MIN_SECONDS * sample_rate or sample_rate < 2 * BANDS[-1]:
        return True
    window = torch.hann_window(frame)
    spectrum = torch.stft(waveform, frame, hop, window=window, center=False, return_complex=True)  # (F, T)
    frequency = torch.arange(len(spectrum)) * sample_rate / frame
    spectrum, frequency = spectrum[frequency >= BANDS[0]], frequency[frequency >= BANDS[0]]
    power = spectrum.real.square() + spectrum.imag.square()
    power = torch.nn.functional.avg_pool1d(power, SMOOTHED_FRAMES, stride=1)  # (F, T - 1)
    mean = power.mean(dim=1)
    if mean.sum() == 0:
        return False
    changing = (mean - 2 * power.quantile(QUIET, dim=1)).clamp(min=0)  # 0 for a steady tone
    bins = torch.stack([(frequency >= low) & (frequency < high) for low, high in pairwise(BANDS)]).float()  # (B, F)
    floor = (CHANGING_FLOOR * changing.sum() + STEADY_FLOOR * mean.sum()) / bins.sum(dim=1).max()
    relative = (power + floor) / (mean + floor)[:, None]
    levels = 10 * torch.cat([bins @ (power + floor), bins @ relative]).log10()  # (2 B, T - 1)
    rise = levels.amax(dim=1) - levels.quantile(QUIET, dim=1)
    return bool((rise >= MIN_RISE_DB).any())
