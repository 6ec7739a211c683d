"""Simulation of a room with a known impulse response."""

import torch
from torch import Tensor


def reverberate(waveform: Tensor, response: Tensor, direct: int) -> Tensor:
    """Convolve a waveform with an impulse response, aligned so that the direct path has no delay.

    Reverberation after the end of the waveform is cut off. The result has the same mean square as the waveform.

    Args:
        waveform: waveform without reverberation.
        response: impulse response of the room.
        direct: index of the sample of the response at which the direct sound arrives; earlier samples, such as the
            ripple of a filter, are also used.

    Shapes:
        waveform: (S,) float32.
        response: (R,)
        returns: (S,)
    """
    size = 1 << (len(waveform) + len(response) - 1).bit_length()
    spectrum = torch.fft.rfft(waveform, size) * torch.fft.rfft(response.to(waveform.dtype), size)
    wet = torch.fft.irfft(spectrum, size)[direct : direct + len(waveform)]
    before, after = waveform.square().mean(), wet.square().mean()
    return wet * (before / after).sqrt() if after > 0 else waveform
