"""A waveform as it is heard in a room whose impulse response is known."""

import torch
from torch import Tensor


def reverberate(waveform: Tensor, response: Tensor, direct: int) -> Tensor:
    """Convolve a waveform with an impulse response; what arrives on the direct path comes when it came before.

    What the room holds when the waveform is over is cut off. The result is as loud as the waveform: it has its mean
    square.

    Args:
        waveform: dry.
        response: of the room.
        direct: the sample of the response at which the direct sound arrives. What it has before that, such as the
            ripple of a filter, is kept.

    Shapes:
        waveform: (S,) float32.
        response: (R,)
        returns: (S,)
    """
    size = 1 << (len(waveform) + len(response) - 1).bit_length()
    spectrum = torch.fft.rfft(waveform, size) * torch.fft.rfft(response.to(waveform.dtype), size)
    heard = torch.fft.irfft(spectrum, size)[direct : direct + len(waveform)]
    before, after = waveform.square().mean(), heard.square().mean()
    return heard * (before / after).sqrt() if after > 0 else waveform
