"""Log-mel features equal Kaldi's recipe, written in numpy; normalised features equal those of plain numpy."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torchaudio
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asr.base.audio.load import MAX_SAMPLE, unusable_samples
from asr.components.features.fbank import Fbank
from asr.components.features.filterbank import BLOCK_FRAMES
from asr.components.features.normalize.global_cmvn import GlobalCMVN
from asr.components.features.normalize.loud_frame_cmvn import LoudFrameCMVN
from asr.components.features.normalize.per_utterance import PerUtterance
from asr.core.build import build_features
from asr.errors import InputError
from tests.conftest import resolved
from tests.refusals import refused

SAMPLE_RATE, NUM_MEL_BINS, WINDOW, SHIFT, FFT_POINTS = 16000, 80, 400, 160, 512
LOG_FLOOR = math.log(np.finfo(np.float32).eps)  # Kaldi's floor, -15.9


def fbank(*overrides: str) -> Fbank:
    """Make the features of conf/features/fbank.yaml with overrides."""
    named = [f"features{override if override.startswith('/') else f'.{override}'}" for override in overrides]
    return build_features(resolved(*named))


FBANK = fbank()
NORMALIZED = {name: fbank(f"/normalize={name}") for name in ("loud_frame_cmvn", "per_utterance")}


def mel(hertz: float) -> float:
    return 1127.0 * math.log(1.0 + hertz / 700.0)


def triangles() -> np.ndarray:
    """Return the weights (F, FFT bins) of triangular filters of equal width in mel, from 20 Hz to Nyquist."""
    low, high = mel(20.0), mel(SAMPLE_RATE / 2)
    step = (high - low) / (NUM_MEL_BINS + 1)
    weights = np.zeros((NUM_MEL_BINS, FFT_POINTS // 2 + 1))
    for number in range(NUM_MEL_BINS):
        left, center, right = (low + (number + corner) * step for corner in range(3))
        for fft_bin in range(FFT_POINTS // 2):  # Kaldi leaves out the bin at Nyquist
            here = mel(fft_bin * SAMPLE_RATE / FFT_POINTS)
            if left < here < right:
                up, down = (here - left) / (center - left), (right - here) / (right - center)
                weights[number, fft_bin] = min(up, down)
    return weights


def kaldi_fbank(waveform: np.ndarray) -> np.ndarray:
    """Compute Kaldi's `compute-fbank-feats --num-mel-bins=80 --dither=0` in float64, on samples in 16-bit units."""
    samples = waveform.astype(np.float64)
    povey = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / (WINDOW - 1))) ** 0.85
    rows = []
    # Only complete frames, as with Kaldi's snip_edges.
    for start in range(0, len(samples) - WINDOW + 1, SHIFT):
        window = samples[start : start + WINDOW]
        window = window - window.mean()
        window = window - 0.97 * np.concatenate([window[:1], window[:-1]])
        power = np.abs(np.fft.rfft(window * povey, n=FFT_POINTS)) ** 2
        rows.append(np.log(np.maximum(triangles() @ power, np.finfo(np.float32).eps)))
    return np.array(rows).reshape(-1, NUM_MEL_BINS)


def noise(num_samples: int = 2000) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(num_samples)


def sine(num_samples: int = 2000) -> np.ndarray:
    return np.sin(2 * np.pi * 1000.0 * np.arange(num_samples) / SAMPLE_RATE)


@pytest.mark.parametrize("amplitude", [0.3, 1e-2, 1e-4, 2.0**-15])
def test_energies_of_noise_equal_kaldis_from_full_scale_to_one_bit(amplitude: float) -> None:
    waveform = (amplitude * noise()).astype(np.float32)
    expected = kaldi_fbank(waveform * 2.0**15)
    actual = FBANK.energies(torch.from_numpy(waveform)).numpy()
    # Energies of a float32 FFT have a relative error of 1e-4, which is an error of 1e-4 in the logarithm.
    np.testing.assert_allclose(actual, expected, rtol=0, atol=5e-4)
    assert expected.min() > LOG_FLOOR + 1


@pytest.mark.parametrize("amplitude", [0.3, 1e-4])
def test_energies_of_a_sine_equal_kaldis(amplitude: float) -> None:
    waveform = (amplitude * sine()).astype(np.float32)
    expected = kaldi_fbank(waveform * 2.0**15)
    actual = FBANK.energies(torch.from_numpy(waveform)).numpy()
    # A bin far from the sine has 1e-10 of the sine's energy, so a float32 FFT has about three correct digits there.
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-2)
    loudest = np.abs(expected - expected.max()) < 5
    np.testing.assert_allclose(actual[loudest], expected[loudest], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("sample_rate", "num_mel_bins"), [(16000, 80), (8000, 23), (44100, 128)])
@pytest.mark.parametrize("name", ["fbank", "mirrored_fbank"])
def test_energies_equal_those_of_torchaudios_kaldi_fbank(name: str, sample_rate: int, num_mel_bins: int) -> None:
    chosen = [f"features={name}", f"features.sample_rate={sample_rate}", f"features.num_mel_bins={num_mel_bins}"]
    features = build_features(resolved(*chosen))
    settings = {"sample_frequency": sample_rate, "num_mel_bins": num_mel_bins}
    if name == "mirrored_fbank":  # lhotse's
        settings |= {"snip_edges": False, "high_freq": -400.0}
    scale = 1.0 if name == "mirrored_fbank" else 2.0**15
    waveform = torch.from_numpy(0.1 * noise(60000)).float()
    expected = torchaudio.compliance.kaldi.fbank(waveform[None].double() * scale, **settings)
    actual = features.energies(waveform.double())
    assert actual.dtype == torch.float64
    # torchaudio and asr compute the filters in float32, so the weights of narrow filters are accurate to 1e-4.
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-4)
    # In float32, the FFTs of torchaudio and asr have rounding errors, which are visible in bins with little energy.
    theirs = torchaudio.compliance.kaldi.fbank(waveform[None] * scale, **settings)
    torch.testing.assert_close(features.energies(waveform), theirs, rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("given", "equal"), [("high_hertz=-400", "high_hertz=7600"), ("high_hertz=0", "high_hertz=8000")]
)
def test_an_upper_edge_of_0_or_less_is_relative_to_half_the_sample_rate(given: str, equal: str) -> None:
    assert torch.equal(fbank(given).mel, fbank(equal).mel)


@pytest.mark.parametrize("hertz", [20, 8001, -7980])
def test_an_upper_edge_that_leaves_no_mel_bins_is_refused(hertz: int) -> None:
    with refused(InputError, "features.high_hertz ... 20 ... 8000", got=hertz):
        fbank(f"high_hertz={hertz}")


def test_energies_grow_with_the_square_of_full_scale_down_to_the_floor() -> None:
    loud, quiet = (torch.from_numpy(amplitude * noise(4000)).float() for amplitude in (0.1, 1e-6))
    one, other = fbank("full_scale=1"), fbank("full_scale=32768")
    difference = torch.full_like(one.energies(loud), 2 * math.log(32768))
    torch.testing.assert_close(other.energies(loud) - one.energies(loud), difference, rtol=0, atol=1e-4)
    assert (one.energies(quiet) == torch.tensor(torch.finfo(torch.float32).eps).log()).all()
    assert (other.energies(quiet) > one.energies(quiet) + 1).any()


@pytest.mark.parametrize("num_frames", [BLOCK_FRAMES - 1, BLOCK_FRAMES, BLOCK_FRAMES + 1, 2 * BLOCK_FRAMES + 1])
def test_frames_are_equal_whether_computed_together_or_separately(num_frames: int) -> None:
    waveform = torch.from_numpy(0.1 * noise(WINDOW + (num_frames - 1) * SHIFT)).float()
    each = [FBANK.energies(waveform[start : start + WINDOW]) for start in range(0, num_frames * SHIFT, SHIFT)]
    # The frames differ by rounding, because a matrix product with a single row sums in another order.
    torch.testing.assert_close(FBANK.energies(waveform), torch.cat(each), rtol=0, atol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_nan_sample_affects_only_the_frames_that_contain_it(bad: float) -> None:
    waveform = torch.from_numpy(0.1 * noise(4000)).float()
    expected = FBANK.energies(waveform)
    waveform[1000] = bad
    actual = FBANK.energies(waveform)
    holding = torch.tensor([start <= 1000 < start + WINDOW for start in range(0, len(actual) * SHIFT, SHIFT)])
    assert actual[holding].isnan().all()
    assert torch.equal(actual[~holding], expected[~holding])


def test_samples_are_scaled_to_16_bit_units_so_that_quiet_audio_is_above_the_floor() -> None:
    last_bit = (2.0**-15 * np.round(0.5 * noise())).astype(np.float32)  # -1, 0 and 1 in 16-bit units
    unscaled = kaldi_fbank(last_bit)
    assert (unscaled == LOG_FLOOR).mean() > 0.5
    assert FBANK.energies(torch.from_numpy(last_bit)).min() > LOG_FLOOR + 5


def test_digital_silence_is_finite_and_at_the_floor() -> None:
    energies = FBANK.energies(torch.zeros(WINDOW))
    torch.testing.assert_close(energies, torch.full((1, NUM_MEL_BINS), LOG_FLOOR), rtol=0, atol=1e-5)
    assert FBANK(torch.zeros(2 * WINDOW)).isfinite().all()


SHAPES = {
    "noise": noise(2 * WINDOW).clip(-1, 1),
    "constant": np.ones(2 * WINDOW),
    "fastest": np.resize([1.0, -1.0], 2 * WINDOW),  # the strongest response of pre-emphasis and of the bin at Nyquist
    "square": np.resize(np.repeat([1.0, -1.0], 8), 2 * WINDOW),  # 1 kHz
    "click": np.eye(2 * WINDOW)[WINDOW],
    "half silent": np.repeat([0.0, 1.0], WINDOW) * noise(2 * WINDOW).clip(-1, 1),
}


@pytest.mark.parametrize("normalize", ["loud_frame_cmvn", "per_utterance"])
@settings(deadline=None, max_examples=200)
@given(
    amplitude=st.one_of(st.just(0.0), st.floats(-45, 24).map(lambda power: 2.0**power), st.just(MAX_SAMPLE)),
    tiny=st.booleans(),
    shape=st.sampled_from(sorted(SHAPES)),
)
def test_features_are_finite_for_any_accepted_audio(normalize: str, amplitude: float, tiny: bool, shape: str) -> None:
    waveform = torch.from_numpy(SHAPES[shape] * amplitude * (1e-30 if tiny else 1.0)).float()
    assert not len(unusable_samples(waveform))
    assert NORMALIZED[normalize](waveform).isfinite().all()


@pytest.mark.parametrize("sample_rate", [1000, 8000, 48000, 192_000])
@pytest.mark.parametrize("shape", ["constant", "fastest", "square"])
def test_energies_of_the_loudest_audio_are_finite_at_any_sample_rate(sample_rate: int, shape: str) -> None:
    """The sum over a window grows with the number of its samples, and so with the sample rate."""
    waveform = MAX_SAMPLE * torch.from_numpy(np.resize(SHAPES[shape][:16], sample_rate // 10)).float()
    energies = fbank(f"sample_rate={sample_rate}", "num_mel_bins=20").energies(waveform)
    assert len(energies)
    assert energies.isfinite().all()


@settings(deadline=None)
@given(num_samples=st.one_of(st.integers(0, 2 * WINDOW), st.integers(0, 8000)))
def test_num_frames_is_the_number_of_frames_returned(num_samples: int) -> None:
    out = FBANK(torch.randn(num_samples))
    assert out.shape == (FBANK.num_frames(num_samples), NUM_MEL_BINS)
    assert FBANK.num_frames(torch.tensor([num_samples])).tolist() == [len(out)]
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ("sample_rate", "frame_length_seconds", "frame_shift_seconds"),
    [(8000, 0.025, 0.01), (11025, 0.025, 0.01), (22050, 0.0161, 0.00803), (44100, 0.025, 0.01), (24000, 0.018, 0.009)],
)
def test_num_frames_is_correct_if_a_window_is_a_fractional_number_of_samples(
    sample_rate: int, frame_length_seconds: float, frame_shift_seconds: float
) -> None:
    features = fbank(
        f"sample_rate={sample_rate}",
        f"frame_length_seconds={frame_length_seconds}",
        f"frame_shift_seconds={frame_shift_seconds}",
        "num_mel_bins=23",
    )
    window, shift = (int(sample_rate * s + 1e-6) for s in (frame_length_seconds, frame_shift_seconds))
    for num_shifts in (0, 1, 7, 40):
        for extra in (-1, 0, 1, 2, shift // 2):
            num_samples = window + num_shifts * shift + extra
            assert len(features.energies(torch.randn(num_samples))) == features.num_frames(num_samples)


def test_a_window_of_whole_samples_is_not_rounded_down_by_floating_point() -> None:
    features = fbank("sample_rate=24000", "frame_length_seconds=0.018", "frame_shift_seconds=0.009")
    assert 24000 * 0.018 < 432  # because of rounding
    assert [features.num_frames(samples) for samples in (431, 432, 647, 648)] == [0, 1, 1, 2]


def test_features_are_normalised_energies() -> None:
    waveform = torch.from_numpy(0.1 * noise(4000)).float()
    expected = PerUtterance(min_std=1e-5)(FBANK.energies(waveform))
    assert torch.equal(FBANK(waveform), expected)


def random_features(num_frames: int, seed: int = 0) -> Tensor:
    """Return features whose bins have different means and deviations; bin 2 is constant."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(num_frames, 5, generator=generator) * torch.tensor([0.5, 2.0, 0.0, 1.0, 4.0])
    return features + torch.tensor([8.0, -15.0, 6.7, 0.0, 1.0])


def test_utterance_cmvn_gives_mean_0_and_variance_1_in_each_bin() -> None:
    features = random_features(50)
    frames = features.double().numpy()
    expected = (frames - frames.mean(axis=0)) / np.maximum(frames.std(axis=0), 1e-5)
    actual = PerUtterance(min_std=1e-5)(features).numpy()
    moving = [0, 1, 3, 4]
    # A number near 15 has a rounding error of up to 5e-7, which is divided by a deviation of 0.5.
    np.testing.assert_allclose(actual[:, moving], expected[:, moving], rtol=0, atol=1e-5)
    assert np.abs(actual[:, 2]).max() < 0.2  # the rounding error of the mean, 1e-6, divided by min_std


def test_utterance_cmvn_makes_a_single_frame_zero_and_accepts_no_frames() -> None:
    normalize = PerUtterance(min_std=1e-5)
    assert torch.equal(normalize(random_features(1)), torch.zeros(1, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns if the standard deviation of no values is computed
        assert normalize(torch.zeros(0, 5)).shape == (0, 5)


LOUD = LoudFrameCMVN(dynamic_range=9.0, min_std=1e-5)


def speech(num_frames: int, seed: int = 0) -> Tensor:
    """Return frames of similar loudness."""
    return torch.rand(num_frames, 5, generator=torch.Generator().manual_seed(seed)) * 4 + torch.arange(5.0)


def test_loud_frames_are_normalised_as_if_they_were_the_whole_utterance() -> None:
    features = speech(40)
    expected = PerUtterance(min_std=1e-5)(features)
    torch.testing.assert_close(LOUD(features), expected, rtol=0, atol=1e-6)
    frames = features.double().numpy()
    plain = (frames - frames.mean(axis=0)) / frames.std(axis=0)
    np.testing.assert_allclose(LOUD(features).numpy(), plain, rtol=0, atol=1e-5)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=6),
    gain=st.floats(-3, 3),
    level=st.floats(-30, -12),
)
def test_inserted_silence_does_not_change_loud_frames_and_gets_their_lowest_values(
    lengths: list[int], gain: float, level: float
) -> None:
    parts = [speech(length, seed=number) for number, length in enumerate(lengths)]
    silences = [torch.full((length + 1, 5), level) for length in lengths]
    pieces = [piece for pair in zip(silences, parts, strict=True) for piece in pair]
    joined = torch.cat(pieces)
    loud = torch.cat([torch.full((len(piece),), number % 2 == 1) for number, piece in enumerate(pieces)])
    alone = LOUD(torch.cat(parts))
    normalised = LOUD(joined + gain)  # a gain of the recording adds a constant to all energies
    torch.testing.assert_close(normalised[loud], alone, rtol=0, atol=1e-4)
    torch.testing.assert_close(normalised[~loud], alone.amin(dim=0).expand(int((~loud).sum()), 5), rtol=0, atol=1e-4)


def test_loud_frame_cmvn_makes_a_single_frame_and_silence_zero_and_accepts_no_frames() -> None:
    assert torch.equal(LOUD(random_features(1)), torch.zeros(1, 5))
    for num_frames in (4, 2997):  # a short and a long sum, which differ in rounding
        assert torch.equal(LOUD(torch.full((num_frames, 5), LOG_FLOOR)), torch.zeros(num_frames, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert LOUD(torch.zeros(0, 5)).shape == (0, 5)


def fitted(features: list[Tensor], **settings: Any) -> GlobalCMVN:
    normalize = GlobalCMVN(**{"num_utterances": 100, "min_std": 1e-2, **settings})
    normalize.fit(iter(features))
    return normalize


def test_training_set_statistics_are_over_all_frames_of_all_utterances() -> None:
    utterances = [random_features(length, seed=length) for length in (3, 40, 1, 17)]
    frames = torch.cat(utterances).double().numpy()
    std = np.maximum(frames.std(axis=0), 1e-2)
    expected = (frames - frames.mean(axis=0)) / std
    normalize = fitted(utterances)
    actual = torch.cat([normalize(utterance) for utterance in utterances]).numpy()
    # The constant bin has the largest error: the rounding error of its mean, 1e-6, divided by min_std, 1e-2.
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)
    assert normalize(torch.zeros(0, 5)).shape == (0, 5)


def test_training_set_statistics_use_only_the_configured_number_of_utterances() -> None:
    def endless() -> Any:
        yield from (random_features(9, seed=1), random_features(7, seed=2))
        raise AssertionError("a third utterance was requested")

    normalize = GlobalCMVN(num_utterances=2, min_std=1e-2)
    normalize.fit(endless())
    both = fitted([random_features(9, seed=1), random_features(7, seed=2)])
    assert torch.equal(normalize.mean, both.mean)


def test_training_set_statistics_are_accurate_if_the_mean_is_large() -> None:
    """Sums of squares in float32 would lose the variance: 1000^2 is accurate to 0.06, and the variance is 0.01."""
    utterances = [1000 + 0.1 * random_features(500, seed=seed) for seed in range(20)]
    frames = torch.cat(utterances).double().numpy()
    normalize = fitted(utterances, min_std=1e-5)
    # In float64, squares of 1000 are accurate to 1e-10.
    np.testing.assert_allclose(normalize.std.numpy()[[0, 1, 3, 4]], frames.std(axis=0)[[0, 1, 3, 4]], rtol=1e-6)


def test_training_set_statistics_need_at_least_one_frame() -> None:
    with refused(InputError, "training audio; got none"):
        fitted([torch.zeros(0, 5)])
    with refused(InputError, "training audio; got none"):
        fitted([])


@pytest.mark.parametrize("name", ["per_utterance", "loud_frame_cmvn", "global_cmvn"])
def test_fitted_statistics_are_saved_and_loaded_bit_for_bit(name: str) -> None:
    before, after = (fbank(f"/normalize={name}").normalize for _ in range(2))
    before.fit([random_features(12, seed=3)])
    after.load(before.files())
    features = random_features(30)
    assert torch.equal(after(features), before(features))
