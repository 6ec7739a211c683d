"""Log-mel features as in NVIDIA NeMo, compared with its recipe in numpy, and with NeMo itself."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.base.audio.load import MAX_SAMPLE
from asr.components.features.filterbank import BLOCK_FRAMES
from asr.components.features.normalize.utterance_cmvn import UtteranceCMVN
from asr.components.features.slaney_fbank import SlaneyFbank
from asr.core.build import build_features
from tests.conftest import resolved
from tests.nemo import AUDIO, audio, golden, needs_model

SAMPLE_RATE, NUM_MEL_BINS, WINDOW, HOP, FFT_POINTS = 16000, 80, 400, 160, 512
LOG_FLOOR = math.log(2.0**-24)
PAD_MODES = pytest.mark.parametrize("pad_mode", ["zeros", "reflect"])


def slaney_fbank(**changes: Any) -> SlaneyFbank:
    """Make the features of conf/features/slaney_fbank.yaml with changes."""
    return build_features(resolved("features=slaney_fbank", *(f"features.{key}={to}" for key, to in changes.items())))


def noise(num_samples: int = 3000, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(num_samples)


def to_hertz(mel: float) -> float:
    return mel * 200 / 3 if mel < 15 else 1000 * math.exp((mel - 15) * math.log(6.4) / 27)


def triangles(sample_rate: int, fft_points: int, num_mel_bins: int) -> np.ndarray:
    """Return weights (F, FFT bins); each row is a triangle whose area over Hz is 1."""
    highest = 15 + 27 * math.log(sample_rate / 2 / 1000) / math.log(6.4)
    corners = [to_hertz(highest * number / (num_mel_bins + 1)) for number in range(num_mel_bins + 2)]
    weights = np.zeros((num_mel_bins, fft_points // 2 + 1))
    for number in range(num_mel_bins):
        left, center, right = corners[number : number + 3]
        for fft_bin in range(fft_points // 2 + 1):
            here = fft_bin * sample_rate / fft_points
            if left < here <= center:
                weights[number, fft_bin] = (here - left) / (center - left)
            elif center < here < right:
                weights[number, fft_bin] = (right - here) / (right - center)
        weights[number] *= 2 / (right - left)
    return weights


def plain(waveform: np.ndarray, pad_mode: str) -> np.ndarray:
    """Compute the recipe in float64: pre-emphasis, padding, and FFTs with a frame in the middle of each."""
    samples = waveform.astype(np.float64)
    samples = samples - 0.97 * np.concatenate([[0.0], samples[:-1]])
    samples = np.pad(samples, FFT_POINTS // 2, mode="constant" if pad_mode == "zeros" else "reflect")
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / (WINDOW - 1))
    in_the_middle = np.zeros(FFT_POINTS)
    in_the_middle[56:456] = hann
    mel = triangles(SAMPLE_RATE, FFT_POINTS, NUM_MEL_BINS)
    rows = []
    for frame in range(len(waveform) // HOP):
        power = np.abs(np.fft.fft(samples[frame * HOP : frame * HOP + FFT_POINTS] * in_the_middle)) ** 2
        rows.append(np.log(mel @ power[: FFT_POINTS // 2 + 1] + 2.0**-24))
    return np.array(rows)


@PAD_MODES
@pytest.mark.parametrize("amplitude", [0.3, 1e-2, 1e-4])
@pytest.mark.parametrize("num_samples", [3000, 3200, 700])
def test_energies_equal_those_of_nemos_recipe_in_numpy(pad_mode: str, amplitude: float, num_samples: int) -> None:
    waveform = (amplitude * noise(num_samples)).astype(np.float32)
    expected = plain(waveform, pad_mode)
    features = slaney_fbank(pad_mode=pad_mode)
    # The window is stored in float32, with errors of 6e-8, which are large relative to bins with little energy.
    actual = features.energies(torch.from_numpy(waveform).double()).numpy()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)
    # A float32 FFT has a relative error of 1e-4 per energy.
    np.testing.assert_allclose(features.energies(torch.from_numpy(waveform)).numpy(), expected, rtol=0, atol=5e-4)


def test_only_frames_at_the_ends_depend_on_reflect_padding() -> None:
    waveform = torch.from_numpy(0.1 * noise(3200))
    zeros, reflected = (slaney_fbank(pad_mode=pad_mode).energies(waveform) for pad_mode in ("zeros", "reflect"))
    differ = (zeros != reflected).any(dim=1)
    within = [WINDOW // 2 <= frame * HOP <= 3200 - WINDOW // 2 for frame in range(20)]
    assert (~differ).tolist() == within


@pytest.mark.parametrize(("sample_rate", "num_mel_bins"), [(16000, 80), (8000, 40), (44100, 128), (1000, 5)])
def test_mel_weights_equal_those_of_another_implementation(sample_rate: int, num_mel_bins: int) -> None:
    audio_utils = pytest.importorskip("transformers.audio_utils")
    features = slaney_fbank(sample_rate=sample_rate, num_mel_bins=num_mel_bins)
    expected = audio_utils.mel_filter_bank(
        1 + features.fft_points // 2, num_mel_bins, 0.0, sample_rate / 2, sample_rate, norm="slaney", mel_scale="slaney"
    )
    np.testing.assert_allclose(features.mel.numpy(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("window_seconds", "hop_seconds"), [(0.025, 0.01), (0.0161, 0.00803), (0.032, 0.016)])
def test_frames_equal_those_of_a_centred_stft_even_if_the_window_is_odd_or_a_power_of_two(
    window_seconds: float, hop_seconds: float
) -> None:
    features = slaney_fbank(frame_length_seconds=window_seconds, frame_shift_seconds=hop_seconds, num_mel_bins=20)
    waveform = torch.from_numpy(0.1 * noise(5000))
    sharper = torch.cat([waveform[:1], waveform[1:] - 0.97 * waveform[:-1]])
    window = torch.hann_window(features.window, periodic=False, dtype=torch.float64)
    spectrum = torch.stft(
        sharper,
        features.fft_points,
        features.hop,
        features.window,
        window,
        center=True,
        pad_mode="constant",
        return_complex=True,
    )
    expected = (spectrum.abs().square().T @ features.mel.double() + 2.0**-24).log()
    num_frames = features.num_frames(5000)
    # The window is stored in float32.
    torch.testing.assert_close(features.energies(waveform), expected[:num_frames], rtol=0, atol=1e-5)


def test_frames_do_not_depend_on_the_block_they_are_computed_in() -> None:
    waveform = torch.from_numpy(0.1 * noise((2 * BLOCK_FRAMES + 4) * HOP)).float()
    together = slaney_fbank().energies(waveform)
    for frame in (3, BLOCK_FRAMES - 1, BLOCK_FRAMES, 2 * BLOCK_FRAMES):
        sample = frame * HOP
        alone = slaney_fbank().energies(waveform[sample - 3 * HOP : sample + 3 * HOP])[3]
        # A matrix product with a single row is summed in a different order.
        torch.testing.assert_close(together[frame], alone, rtol=0, atol=1e-5)


FEATURES = {pad_mode: slaney_fbank(pad_mode=pad_mode) for pad_mode in ("zeros", "reflect")}


@PAD_MODES
@settings(deadline=None, max_examples=50)
@given(num_samples=st.one_of(st.integers(0, 2 * WINDOW), st.integers(0, 8000)))
def test_num_frames_is_the_number_of_frames_returned(pad_mode: str, num_samples: int) -> None:
    features = FEATURES[pad_mode]
    out = features(torch.randn(num_samples))
    assert out.shape == (features.num_frames(num_samples), NUM_MEL_BINS)
    assert features.num_frames(torch.tensor([num_samples])).tolist() == [len(out)]
    assert out.isfinite().all()


@PAD_MODES
@settings(deadline=None, max_examples=50)
@given(
    amplitude=st.one_of(st.just(0.0), st.floats(-126, 24).map(lambda power: 2.0**power), st.just(MAX_SAMPLE)),
    shape=st.sampled_from([(1.0, 1.0), (1.0, -1.0), (0.0, 0.0, 1.0), (1.0,) * 8 + (-1.0,) * 8]),
)
def test_features_are_finite_for_any_accepted_audio(pad_mode: str, amplitude: float, shape: tuple[float, ...]) -> None:
    waveform = torch.from_numpy(amplitude * np.resize(shape, 2 * WINDOW)).float()
    assert FEATURES[pad_mode](waveform).isfinite().all()


def test_digital_silence_is_at_the_floor_and_normalised_to_zeros() -> None:
    silence = torch.zeros(2 * WINDOW)
    torch.testing.assert_close(FEATURES["zeros"].energies(silence), torch.full((5, 80), LOG_FLOOR), rtol=0, atol=1e-5)
    assert torch.equal(FEATURES["zeros"](silence), torch.zeros(5, 80))


def test_cmvn_divides_by_the_unbiased_deviation() -> None:
    features = torch.from_numpy(noise(50 * 4)).view(50, 4) * torch.tensor([0.5, 2.0, 0.0, 4.0]) + 8.0
    frames = features.numpy()
    expected = (frames - frames.mean(axis=0)) / (frames.std(axis=0, ddof=1) + 1e-5)
    np.testing.assert_allclose(UtteranceCMVN(eps=1e-5)(features).numpy(), expected, rtol=0, atol=1e-12)
    biased = (frames - frames.mean(axis=0)) / (frames.std(axis=0) + 1e-5)
    assert np.abs(biased - expected).max() > 1e-2, "with 50 frames the difference is measurable"


def test_cmvn_makes_a_single_frame_zero_and_permits_empty_features() -> None:
    normalize = UtteranceCMVN(eps=1e-5)
    assert torch.equal(normalize(torch.randn(1, 5)), torch.zeros(1, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns about the standard deviation of a single value
        assert normalize(torch.zeros(0, 5)).shape == (0, 5)


@needs_model
@pytest.mark.parametrize("utterance", AUDIO)
def test_features_of_real_speech_equal_those_computed_by_nemo(utterance: str) -> None:
    off = np.abs(FEATURES["zeros"](audio(utterance)).numpy() - golden(utterance, "features"))
    assert off.max() < 5e-4
    assert np.median(off) < 1e-6


@pytest.mark.parametrize("seconds", [0.04, 1.0, 7.123])
def test_features_equal_those_of_nemos_own_preprocessor(seconds: float) -> None:
    modules = pytest.importorskip("nemo.collections.asr.modules", reason="nemo_toolkit is not installed")
    theirs = modules.AudioToMelSpectrogramPreprocessor(
        window_size=0.025, features=NUM_MEL_BINS, n_fft=FFT_POINTS, dither=0.0, pad_to=0
    )
    waveform = torch.from_numpy(0.1 * noise(int(seconds * SAMPLE_RATE))).float()
    expected, lengths = theirs(input_signal=waveform[None], length=torch.tensor([len(waveform)]))
    actual = FEATURES["zeros"](waveform)
    assert lengths.tolist() == [len(actual)]
    off = (actual - expected[0, :, : len(actual)].T).abs()
    assert off.max() < 5e-4
    assert off.median() < 1e-6
