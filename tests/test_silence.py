"""Cutting at silences: no lost samples, no segment above the maximum, and cuts in pauses if there are any."""

import itertools
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asr.base.audio.load import load_waveform
from asr.base.audio.silence import cut_at_silences
from tests.conftest import SHARED, needs_shared

RATE = 16000
FRAME = 320  # 20 ms


def noise(seconds: float, level: float = 1e-3, seed: int = 0) -> Tensor:
    return level * torch.randn(round(seconds * RATE), generator=torch.Generator().manual_seed(seed))


def speech(seconds: float, seed: int = 0) -> Tensor:
    """Return noise with the loudness of speech: a random level for each 0.2 s, and dips of 0.1 s between them."""
    syllables = -(-round(seconds * RATE) // 3200)
    strength = 0.1 * 3 ** torch.rand(syllables, generator=torch.Generator().manual_seed(seed))
    envelope = torch.sin(torch.arange(3200) * torch.pi / 3200) ** 2 + 0.003
    return noise(seconds, 1.0, seed) * (strength[:, None] * envelope).reshape(-1)[: round(seconds * RATE)]


def recording(*pieces: tuple[float, float], level: float = 1e-3) -> tuple[Tensor, list[float]]:
    """Return alternating speech and pauses of these durations, in noise, and the centres of the pauses in seconds."""
    parts, middles, now = [], [], 0.0
    for number, (talk, pause) in enumerate(pieces):
        parts += [speech(talk, number), torch.zeros(round(pause * RATE))]
        middles.append(now + talk + pause / 2)
        now += talk + pause
    waveform = torch.cat(parts)
    return waveform + noise(len(waveform) / RATE, level, seed=99)[: len(waveform)], middles


def cuts_of(waveform: Tensor, max_seconds: float, block_samples: int = 8000, **options: float) -> list[float]:
    """Return the cuts of the waveform in seconds, after checking invariants."""
    segments = list(cut_at_silences(waveform.split(block_samples), RATE, max_seconds=max_seconds, **options))
    assert torch.equal(torch.cat([segment for _, segment in segments]), waveform)
    ends = list(itertools.accumulate(len(segment) for _, segment in segments))
    assert [start for start, _ in segments] == [0, *ends[:-1]]
    assert all(0 < len(segment) <= max_seconds * RATE for _, segment in segments)
    return [start / RATE for start, _ in segments[1:]]


def near(actual: list[float], expected: list[float], seconds: float = 0.05) -> bool:
    return len(actual) == len(expected) and all(
        abs(value - target) <= seconds for value, target in zip(actual, expected, strict=True)
    )


# ---- invariants


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_segments_are_consecutive_and_complete_for_any_sound_and_blocks(data):
    kinds = {"speech": speech, "noise": noise, "zeros": lambda seconds, seed: torch.zeros(round(seconds * RATE))}
    parts = data.draw(st.lists(st.tuples(st.sampled_from(sorted(kinds)), st.floats(0.001, 3)), min_size=1, max_size=5))
    waveform = torch.cat([torch.zeros(1), *(kinds[kind](seconds, seed=n) for n, (kind, seconds) in enumerate(parts))])
    max_seconds = data.draw(st.sampled_from([0.05, 0.31, 1.0, 4.0]))
    lengths = data.draw(st.lists(st.one_of(st.integers(0, 700), st.integers(1, 40000)), max_size=20))
    borders = [end for end in itertools.accumulate(lengths) if end < len(waveform)]
    blocks = waveform.tensor_split(borders)
    cuts = cuts_of(waveform, max_seconds, len(waveform))
    segments = list(cut_at_silences(blocks, RATE, max_seconds=max_seconds))
    assert [start / RATE for start, _ in segments][1:] == cuts
    assert torch.equal(torch.cat([segment for _, segment in segments]), waveform)


@pytest.mark.parametrize("samples", [1, 2, 319, 321])
def test_segments_of_a_few_samples_do_not_cause_an_endless_loop(samples):
    cuts_of(speech(0.05), samples / RATE)


def test_an_empty_waveform_has_no_segments():
    assert list(cut_at_silences([], RATE, max_seconds=1.0)) == []
    assert list(cut_at_silences([torch.zeros(0)], RATE, max_seconds=1.0)) == []


def test_audio_that_fits_into_one_segment_is_not_cut():
    waveform, _ = recording((4, 2), (3.5, 0.5))
    assert len(waveform) == 10 * RATE
    assert cuts_of(waveform, 10.0) == []
    assert len(cuts_of(torch.cat([waveform, torch.zeros(1)]), 10.0)) == 1


def test_no_more_audio_is_read_than_the_next_segment_needs():
    """Memory is bounded: between two segments, at most max_seconds and one block are read."""
    read = 0

    def blocks():
        nonlocal read
        for number in range(300):
            yield speech(1.0, number)
            read += RATE

    ended = 0
    for _, segment in cut_at_silences(blocks(), RATE, max_seconds=20.0):
        assert read - ended <= 21 * RATE
        assert segment.untyped_storage().nbytes() == 4 * len(segment)  # the segment's storage has only its own samples
        ended += len(segment)
    assert ended == 300 * RATE


# ---- positions of cuts


@pytest.mark.parametrize("level", [0.0, 1e-5, 1e-3, 3e-3])
@pytest.mark.parametrize("pause", [0.4, 0.6, 1.5])
def test_planted_pauses_are_found(level, pause):
    waveform, middles = recording((7, pause), (6, pause), (7.7, pause), (5.5, pause), (7, pause), (9, 0), level=level)
    assert near(cuts_of(waveform, 10.0), middles[:-1])


def test_the_longest_pause_after_the_first_third_is_chosen():
    waveform, middles = recording((2, 0.5), (3, 0.4), (2, 0.7), (3, 0.5), (2, 0.4), (8, 0))
    assert near(cuts_of(waveform, 15.0)[:1], [middles[2]])


def test_a_long_pause_ends_a_segment_early_and_a_short_one_only_if_there_is_no_other():
    waveform, middles = recording((2, 1.3), (6, 0.5), (9, 0))
    assert near(cuts_of(waveform, 15.0)[:1], [middles[0]])
    assert near(cuts_of(waveform, 15.0, long_silence_seconds=2.0)[:1], [middles[1]])
    waveform, middles = recording((2, 0.5), (20, 0))
    assert near(cuts_of(waveform, 15.0)[:1], [middles[0]])
    assert cuts_of(waveform, 15.0, min_silence_seconds=0.8)[0] > 10.0


def test_a_long_pause_is_cut_only_once():
    waveform, middles = recording((5, 6), (11.5, 0))
    first, second = cuts_of(waveform, 12.0)
    assert near([first], middles[:1])
    # the second segment contains the silence, the third all later speech
    assert second == pytest.approx(11 - 0.15, abs=0.05)


def test_long_silence_becomes_long_segments():
    for silence in (torch.zeros(60 * RATE), torch.full((60 * RATE,), 0.3), noise(60.0), noise(60.0, 0.3)):
        assert len(cuts_of(silence, 10.0)) == 6  # seven segments; six would need exactly 10 s each


@pytest.mark.parametrize("background", ["noise", "nothing"])
def test_a_click_does_not_end_a_pause(background):
    waveform, _ = recording((6, 0.5), (7, 0), level=1e-3 if background == "noise" else 0.0)
    waveform[int(6.1 * RATE) :][:200] += 0.5
    assert near(cuts_of(waveform, 10.0), [6.25])


def test_speech_without_a_pause_is_cut_at_the_quietest_point_of_the_last_third():
    waveform = speech(18.0) + noise(18.0, 0.02)
    for quiet, factor in ((3.0, 0.0), (7.5, 0.2), (8.8, 0.04)):  # seconds; the last third begins at 6.7
        waveform[round((quiet - 0.06) * RATE) : round((quiet + 0.06) * RATE)] *= factor
    assert cuts_of(waveform, 10.0) == [pytest.approx(8.8, abs=0.03)]


@pytest.mark.parametrize("factor", [0.01, 2**-10, 30.0])
def test_loudness_and_a_constant_offset_do_not_change_the_cuts(factor):
    waveform, _ = recording((3, 0.35), (5, 0.7), (2, 1.2), (11, 0.3), (4, 0.4), (16, 0.5), (3, 0))
    cuts = cuts_of(waveform, 10.0)
    assert len(cuts) >= 4
    assert cuts_of(waveform * factor, 10.0) == cuts
    assert cuts_of(waveform + 0.125, 10.0) == cuts


@pytest.mark.parametrize(("front", "level"), [(0.0, 8e-3), (4e-4, 5e-3)])
def test_digital_silence_or_a_much_fainter_part_does_not_hide_pauses_in_noise(front, level):
    waveform, middles = recording((8, 0.6), (9, 0), level=level)
    for seconds in (1.0, 2.5):
        assert near(cuts_of(torch.cat([noise(seconds, front), waveform]), 12.0)[:1], [seconds + middles[0]])


# ---- real speech


@pytest.fixture(scope="module")
def reading() -> tuple[Tensor, list[tuple[int, int]]]:
    """Return utterances of LibriSpeech with 0.6 s of faint noise between them, and the noise's positions in samples."""
    paths = sorted(Path(SHARED, "LibriSpeech", "dev-mini").glob("*/*/*.flac"))
    parts, gaps, end = [], [], 0
    for number, path in enumerate(random.Random(0).sample(paths, 20)):
        parts += [load_waveform(path, RATE), noise(0.6, 3e-4, seed=number)]
        end += len(parts[-2]) + len(parts[-1])
        gaps.append((end - len(parts[-1]), end))
    return torch.cat(parts), gaps[:-1]


@needs_shared
@pytest.mark.parametrize("max_seconds", [10.0, 20.0, 30.0])
def test_real_speech_is_cut_in_its_pauses(reading, max_seconds):
    waveform, gaps = reading
    cuts = [round(cut * RATE) for cut in cuts_of(waveform, max_seconds)]
    planted = [cut for cut in cuts if any(begin <= cut < end for begin, end in gaps)]
    assert len(planted) >= 0.35 * len(cuts)  # not all: readers also pause within utterances, often for longer
    loudness = waveform[: len(waveform) // FRAME * FRAME].view(-1, FRAME).square().mean(dim=1)
    quiet = 0
    for cut in cuts:
        frame = cut // FRAME
        around = loudness[max(0, frame - 500) : frame + 500]  # 10 s to either side
        # A cut is quiet if it is 25 dB below the loudness of its surroundings.
        quiet += bool(loudness[frame - 5 : frame + 5].mean() < around.quantile(0.95) / 10**2.5)
    assert quiet >= 0.9 * len(cuts)
    assert len(cuts) <= 2.2 * len(waveform) / RATE / max_seconds  # few segments are much shorter than the maximum
