"""Whether anything is said: what is silent or steady all along does not reach the net, which may read words into it."""

from itertools import pairwise

import torch
from torch import Tensor

MIN_SECONDS = 1.0  # a shorter recording may be one sound of speech, which is steady, too
FRAME_SECONDS = 0.032
HOP_SECONDS = 0.016
SMOOTHED_FRAMES = 6  # 0.1 s, as long as the sounds of speech; the level of noise varies less over so many
BANDS = (100, 300, 600, 1000, 1500, 2200, 3200)  # Hz, from one to the next: in some of them speech stands out
FLOOR = 1e-3  # of the mean power above the lowest of them: weaker bands, and what leaks into them, count as this
QUIET = 0.1  # of the frames are the quiet ones
MIN_RISE_DB = 7.0  # from the quiet to the loudest: speech in pink noise as loud rises by 9 and more, noise by 5


def may_hold_speech(waveform: Tensor, sample_rate: int) -> bool:
    """Tell whether a recording (S,) may hold speech; in doubt it does.

    Speech comes and goes: within a tenth of a second it rises far above what is there between the words, in one band
    of frequencies at least. Silence, hiss, hum, and noise in bands where there is no speech do not. Music does, and so
    do clicks: that there is no speech in them, only the net can tell.
    """
    frame, hop = round(FRAME_SECONDS * sample_rate), round(HOP_SECONDS * sample_rate)
    if len(waveform) < MIN_SECONDS * sample_rate or sample_rate < 2 * BANDS[-1]:
        return True
    window = torch.hann_window(frame)
    spectrum = torch.stft(waveform, frame, hop, window=window, center=False, return_complex=True)  # (F, T)
    power, frequency = (
        spectrum.real.square() + spectrum.imag.square(),
        torch.arange(len(spectrum)) * sample_rate / frame,
    )
    inside = torch.stack([(frequency >= low) & (frequency < high) for low, high in pairwise(BANDS)])  # (B, F)
    floor = FLOOR * power.mean(dim=1)[frequency >= BANDS[0]].sum()
    if floor == 0:
        return False
    smoothed = torch.nn.functional.avg_pool1d(inside.to(power.dtype) @ power, SMOOTHED_FRAMES, stride=1)  # (B, T - 5)
    levels = 10 * (smoothed + floor).log10()
    rise = levels.amax(dim=1) - levels.quantile(QUIET, dim=1)
    return bool((rise >= MIN_RISE_DB).any())
