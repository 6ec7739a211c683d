"""Whether anything is said: what is silent or steady all along does not reach the net, which may read words into it."""

from itertools import pairwise

import torch
from torch import Tensor

MIN_SECONDS = 1.0  # a shorter recording may be one sound of speech, which is steady, too
FRAME_SECONDS = 0.256  # parts the harmonics of a hum of 50 Hz, between which speech is found
HOP_SECONDS = 0.064
SMOOTHED_FRAMES = 2  # tones beat, and the level of noise varies, less over so many
BANDS = (100, 300, 600, 1000, 1500, 2200, 3200)  # Hz, from one to the next: in some of them speech stands out
CHANGING_FLOOR = 1e-3  # of the power that comes and goes: what leaks of it into other bins counts as steady
STEADY_FLOOR = 1e-8  # of all power: so much leaks from a steady tone, and is rounding
QUIET = 0.1  # of the frames are the quiet ones
MIN_RISE_DB = 6.0  # noise and tones rise by 4 at most, speech in pink noise as loud by 13, 40 dB below a hum by 8


def may_hold_speech(waveform: Tensor, sample_rate: int) -> bool:
    """Tell whether a recording (S,) may hold speech; in doubt it does.

    Speech comes and goes: in one band of frequencies at least it rises far above what is there between the words.
    Silence, hiss, tones, hum, and noise in bands where there is no speech do not. The level of a band is that of its
    power; and that of its bins relative to the mean of each, so that a steady tone, however loud, hides only the bins
    that it is in. Music comes and goes, and so do clicks: that there is no speech in them, only the net can tell.
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
    changing = (mean - 2 * power.quantile(QUIET, dim=1)).clamp(min=0)  # nothing of a steady tone
    bins = torch.stack([(frequency >= low) & (frequency < high) for low, high in pairwise(BANDS)]).float()  # (B, F)
    floor = (CHANGING_FLOOR * changing.sum() + STEADY_FLOOR * mean.sum()) / bins.sum(dim=1).max()
    relative = (power + floor) / (mean + floor)[:, None]
    levels = 10 * torch.cat([bins @ (power + floor), bins @ relative]).log10()  # (2 B, T - 1)
    rise = levels.amax(dim=1) - levels.quantile(QUIET, dim=1)
    return bool((rise >= MIN_RISE_DB).any())
