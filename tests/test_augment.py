"""Masks of SpecAugment, and speed perturbation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchaudio import transforms

from asr.base.system.seeds import derive_seed, seeded
from asr.components.augment.spec_augment import SpecAugment
from asr.components.augment.speed_perturb import SpeedPerturb
from asr.core.build import build_augmentation
from tests.conftest import resolved

SAMPLE_RATE, NUM_FRAMES, NUM_MEL_BINS, DRAWS = 16000, 300, 80, 200
SPEEDS = SpeedPerturb(SAMPLE_RATE, factors=[0.9, 1.0, 1.1])


def spec_augment(
    num_freq_masks: int = 2, freq_mask_bins: int = 27, num_time_masks: int = 5, time_mask_fraction: float = 0.05
) -> SpecAugment:
    """Make the augmentation of conf/augment/spec_augment.yaml, with changes."""
    return SpecAugment(
        num_freq_masks=num_freq_masks,
        freq_mask_bins=freq_mask_bins,
        num_time_masks=num_time_masks,
        time_mask_fraction=time_mask_fraction,
    )


def masked_frames_and_bins(augment: SpecAugment) -> tuple[Tensor, Tensor]:
    """Augment features without zeros; return the masked frames and bins, and check that nothing else changed."""
    features = torch.rand(NUM_FRAMES, NUM_MEL_BINS) + 1
    out = augment(features)
    frames, bins = (out == 0).all(dim=1), (out == 0).all(dim=0)
    masked = frames[:, None] | bins[None, :]
    assert torch.equal(out, features.masked_fill(masked, 0.0))
    return frames, bins


def test_masks_are_zeros_over_whole_frames_and_bins_within_their_limits() -> None:
    most_frames, most_bins = 0, 0
    for _ in range(DRAWS):
        frames, bins = masked_frames_and_bins(spec_augment())
        most_frames, most_bins = max(most_frames, int(frames.sum())), max(most_bins, int(bins.sum()))
    longest = int(NUM_FRAMES * 0.05) - 1
    assert 3 * longest < most_frames <= 5 * longest
    assert 26 < most_bins <= 2 * 26


@pytest.mark.parametrize("axis", ["time", "frequency"])
def test_mask_widths_take_every_value_from_0_to_below_the_limit(axis: str) -> None:
    widths = set()
    for _ in range(10 * DRAWS):
        if axis == "time":
            frames, _ = masked_frames_and_bins(spec_augment(num_freq_masks=0, num_time_masks=1))
            masked = frames
        else:
            _, bins = masked_frames_and_bins(spec_augment(num_freq_masks=1, num_time_masks=0))
            masked = bins
        places = masked.nonzero()[:, 0].tolist()
        assert places == list(range(places[0], places[0] + len(places))) if places else True
        widths.add(len(places))
    # A time mask is narrower than 15 frames (0.05 of 300), a frequency mask narrower than freq_mask_bins (27).
    assert widths == set(range(15 if axis == "time" else 27))


def test_torchaudios_spec_augment_limits_frequency_masks_by_the_fraction_meant_for_time() -> None:
    """Test why asr does not use torchaudio's SpecAugment: p=0.05 also limits frequency masks, to 4 of 80 bins."""
    theirs = transforms.SpecAugment(
        n_time_masks=0, time_mask_param=1000, n_freq_masks=1, freq_mask_param=27, p=0.05, zero_masking=True
    )
    widths = [int((theirs(torch.ones(1, NUM_MEL_BINS, 50)) == 0).all(dim=2).sum()) for _ in range(DRAWS)]
    assert max(widths) < 4
    ours = [int(masked_frames_and_bins(spec_augment(num_freq_masks=1))[1].sum()) for _ in range(DRAWS)]
    assert max(ours) > 20


def test_masks_equal_those_of_torchaudios_functions_for_the_same_seed() -> None:
    features = torch.rand(NUM_FRAMES, NUM_MEL_BINS) + 1
    parts = [transforms.FrequencyMasking(27)] * 2 + [transforms.TimeMasking(int(NUM_FRAMES * 0.05))] * 5
    for seed in range(20):
        expected = features.T
        with seeded(seed):
            for mask in parts:
                expected = mask(expected)
        with seeded(seed):
            assert torch.equal(spec_augment()(features), expected.T)


def test_a_mask_wider_than_the_number_of_bins_leaves_one_bin() -> None:
    """The width is drawn from 0 up to, but not including, the number of bins."""
    augment = spec_augment(num_freq_masks=1, num_time_masks=0)
    widths = {int((augment(torch.ones(3, 4)) == 0).all(dim=0).sum()) for _ in range(DRAWS)}
    assert widths == {0, 1, 2, 3}


def test_time_masks_grow_with_the_utterance_and_the_shortest_utterances_have_none() -> None:
    augment = spec_augment(num_freq_masks=0)
    for num_frames in (1, 19):  # 0.05 of these frames is less than one frame
        features = torch.ones(num_frames, NUM_MEL_BINS)
        assert torch.equal(augment(features), features)
    most = max(int((augment(torch.ones(2000, 4)) == 0).all(dim=1).sum()) for _ in range(DRAWS))
    assert 200 < most <= 5 * 99


def test_a_derived_seed_is_equal_on_every_machine_and_differs_if_any_of_its_parts_differs() -> None:
    assert derive_seed(0, 1, "a") == 8155858023006403250
    others = [
        derive_seed(*parts) for parts in ((1, 0, "a"), (0, 1, "b"), (0, "1", "a"), (0, 1), (0, 1, "a", 0), (0, 11))
    ]
    assert len({*others, derive_seed(0, 1, "a")}) == len(others) + 1
    assert all(0 <= seed < 2**63 for seed in others)


def test_seeded_does_not_change_the_global_generator() -> None:
    torch.manual_seed(5)
    undisturbed = torch.rand(3)
    torch.manual_seed(5)
    with seeded(1, 2, "three"):
        torch.rand(17)
    assert torch.equal(torch.rand(3), undisturbed)


def test_masking_does_not_change_its_input() -> None:
    features = torch.rand(NUM_FRAMES, NUM_MEL_BINS) + 1
    before = features.clone()
    spec_augment()(features)
    assert torch.equal(features, before)


@settings(deadline=None, max_examples=60)
@given(num_samples=st.integers(1, 40000), factor=st.sampled_from([0.9, 1.0, 1.1]))
def test_num_samples_is_the_number_of_samples_returned(num_samples: int, factor: float) -> None:
    assert len(SPEEDS(torch.zeros(num_samples), factor)) == SPEEDS.num_samples(num_samples, factor)
    assert SPEEDS.num_samples(num_samples, factor) == math.ceil(round(num_samples / factor, 6))
    many = SPEEDS.num_samples(torch.tensor([num_samples]), factor)
    assert many.tolist() == [SPEEDS.num_samples(num_samples, factor)]


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_the_frequency_of_a_sine_is_multiplied_by_the_speed_factor(factor: float) -> None:
    times = torch.arange(2 * SAMPLE_RATE) / SAMPLE_RATE
    played = SPEEDS(torch.sin(2 * torch.pi * 440.0 * times), factor)
    spectrum = torch.fft.rfft(played * torch.hann_window(len(played)), n=SAMPLE_RATE).abs()  # one bin per Hz
    assert abs(int(spectrum.argmax()) - 440.0 * factor) <= 1.0
    inner = played[len(played) // 4 : -len(played) // 4]
    assert abs(float(inner.abs().max()) - 1.0) < 1e-2  # the loudness does not change


@pytest.mark.parametrize("sample_rate", [8_000, 16_000, 44_100])
@pytest.mark.parametrize("factor", [0.1, 0.9, 0.95, 1.1, 1.37, 10.0])
def test_speeds_equal_torchaudios_bit_for_bit(factor: float, sample_rate: int) -> None:
    perturb, expected = SpeedPerturb(sample_rate, factors=[factor]), transforms.Speed(sample_rate, factor)
    for num_samples in (1, 7, 1601, 20_000):
        waveform = torch.randn(num_samples)
        perturbed = perturb(waveform, factor)
        assert torch.equal(perturbed, expected(waveform)[0])
        assert len(perturbed) == perturb.num_samples(num_samples, factor)


def test_speed_1_changes_nothing() -> None:
    waveform = torch.randn(1000)
    assert SPEEDS(waveform, 1.0) is waveform


def test_a_config_of_speed_perturb_and_spec_augment_gives_speed_factors_and_a_mask_for_features() -> None:
    augmentation = build_augmentation(resolved("augment=[speed_perturb,spec_augment]"), SAMPLE_RATE)
    assert augmentation.speed is not None
    assert augmentation.speed.factors == (0.9, 1.0, 1.1)
    assert not augmentation.waveform
    features = torch.rand(1, 50, NUM_MEL_BINS) + 1
    (mask,) = augmentation.features
    assert any((mask(utterance) == 0).any() for utterance in features.expand(20, -1, -1))
