"""Turn espeak's samples into a simulated recording by a microphone in a room: 16 kHz, moderate echo, moderate noise."""

from collections.abc import Sequence

import numpy as np

SAMPLE_RATE = 16_000
_PEAK = 0.9  # maximum, relative to full scale
_QUIET = 0.01  # relative to the peak; softer samples at both ends are not speech


def record(
    sentences: Sequence[np.ndarray],
    pauses: Sequence[float],
    silences: tuple[float, float],
    sample_rate: int,
    random: np.random.Generator,
) -> np.ndarray:
    """Return a 16 kHz waveform of the sentences recorded in a room, with random echo, noise and loudness.

    Args:
        sentences: samples of each sentence.
        pauses: seconds of room noise before each sentence.
        silences: seconds of (nearly) digital silence before and after the recording.
        sample_rate: sample rate of the sentences, in Hz.
        random: generator for the room.
    """
    spoken = [_trim(resample(samples / 32768, sample_rate)) for samples in sentences]
    quiet = [np.zeros(round(seconds * SAMPLE_RATE)) for seconds in pauses]
    speech = np.concatenate([part for pair in zip(quiet, spoken, strict=True) for part in pair])
    before, after = (int(seconds * SAMPLE_RATE) for seconds in random.uniform(0.05, 0.15, size=2))
    waveform = _echo(np.pad(speech, (before, after)), random)
    level = _rms(waveform)
    waveform = waveform + _noise(len(waveform), random) * level * 10 ** (-random.uniform(28, 45) / 20)
    loudness = 10 ** (random.uniform(-30, -20) / 20)  # dB below full scale
    waveform = waveform * min(loudness / level, _PEAK / np.abs(waveform).max())
    return np.concatenate([_silence(silences[0], random), waveform, _silence(silences[1], random)])


def _silence(seconds: float, random: np.random.Generator) -> np.ndarray:
    """Return digital silence or, with equal probability, the faint noise of an open line."""
    if seconds == 0:
        return np.zeros(0)
    num_samples = round(seconds * SAMPLE_RATE)
    if random.random() < 0.5:
        return np.zeros(num_samples)
    return _noise(num_samples, random) * 10 ** (-random.uniform(55, 85) / 20)  # dB below full scale


def resample(waveform: np.ndarray, sample_rate: int) -> np.ndarray:
    """Resample to 16 kHz by one Fourier transform of the whole waveform, with a low-pass from 7.5 to 8 kHz."""
    if sample_rate == SAMPLE_RATE:
        return waveform
    divisor = int(np.gcd(sample_rate, SAMPLE_RATE))
    num_periods = -(-len(waveform) // (sample_rate // divisor))
    num_before, num_after = num_periods * sample_rate // divisor, num_periods * SAMPLE_RATE // divisor
    spectrum = np.fft.rfft(waveform, num_before)[: num_after // 2 + 1]
    frequency = np.arange(len(spectrum)) / num_periods * divisor
    passed = 0.5 + 0.5 * np.cos(np.pi * np.clip((frequency - 7_500) / 500, 0, 1))
    return np.fft.irfft(spectrum * passed, num_after) * (num_after / num_before)


def _trim(waveform: np.ndarray) -> np.ndarray:
    loud = np.flatnonzero(np.abs(waveform) > _QUIET * np.abs(waveform).max())
    return waveform[loud[0] : loud[-1] + 1]


def _echo(waveform: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Add reverberation to a waveform: noise that starts after 4 ms and decays by 60 dB within 0.1 to 0.3 s."""
    fade_seconds = random.uniform(0.1, 0.3)
    time = np.arange(int(fade_seconds * SAMPLE_RATE)) / SAMPLE_RATE
    reflections = random.standard_normal(len(time)) * 10 ** (-3 * time / fade_seconds) * (time > 0.004)
    strength = 10 ** (-random.uniform(9, 20) / 20)  # dB below the direct sound
    response = reflections * strength / np.linalg.norm(reflections)
    response[0] = 1.0
    size = 1 << (len(waveform) + len(response) - 1).bit_length()
    return np.fft.irfft(np.fft.rfft(waveform, size) * np.fft.rfft(response, size), size)[: len(waveform)]


def _noise(num_samples: int, random: np.random.Generator) -> np.ndarray:
    """Return noise of unit power, at random between white and pink above 50 Hz, and white below."""
    size = 1 << num_samples.bit_length()
    frequency = np.maximum(np.fft.rfftfreq(size, 1 / SAMPLE_RATE), 50)
    spectrum = np.fft.rfft(random.standard_normal(size)) * frequency ** -random.uniform(0, 0.5)
    noise = np.fft.irfft(spectrum, size)[:num_samples]
    return noise / _rms(noise)


def _rms(waveform: np.ndarray) -> float:
    return float(np.sqrt(np.mean(waveform**2)))
