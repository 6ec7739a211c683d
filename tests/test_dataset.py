"""Utterances of the corpus of tones become examples, or are rejected with a reason."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import soundfile
import torch
from torch.utils.data import DataLoader

from asr.base.system.processes import torch_threads
from asr.components.augment.speed_perturb import SpeedPerturb
from asr.components.encoder.subsampling.strided_conv import StridedConv
from asr.components.head.ctc import CTC
from asr.components.tokenizer.char import Char
from asr.core.build import build_augmentation, build_features
from asr.core.data.batch import Batch, Example, Rejected, collate
from asr.core.data.dataset import Augmentation, Item, Reference, SpeechDataset, energies
from asr.core.data.manifest import Utterance, read_manifest
from asr.core.data.selection import Selection, SelectionBounds, feasible_factors, select
from asr.core.data.token_counts import count_tokens
from asr.core.data.utterances import Utterances
from asr.interfaces import Features
from tests.conftest import resolved
from tests.tones import SAMPLE_RATE

TOKENIZER = Char()
TOKENIZER.fit([" abcdef"])
REFERENCE = Reference(TOKENIZER.encode, CTC.min_frames, StridedConv.output_lengths)
CONFIG = resolved("augment=[speed_perturb,spec_augment]")
AUGMENTATION = build_augmentation(CONFIG, SAMPLE_RATE)
SPEED = SpeedPerturb(SAMPLE_RATE, factors=[0.9, 1.0, 1.1])


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Compute with one thread, as the data set does, because another number of threads may round differently."""
    with torch_threads(1):
        yield


@pytest.fixture(scope="module")
def features() -> Features:
    return build_features(CONFIG)


@pytest.fixture(scope="module")
def utterances(tones: Path) -> list[Utterance]:
    return read_manifest(tones / "train.jsonl")[:12]


def good(example: Example | Rejected) -> Example:
    assert isinstance(example, Example)
    return example


def encoder_frames(utterance: Utterance, features: Features, factor: float = 1.0) -> int:
    """Count the encoder frames of an utterance at the speed `factor`."""
    samples, sample_rate = soundfile.read(utterance.audio_filepath, dtype="float32")
    assert sample_rate == SAMPLE_RATE
    return StridedConv.output_lengths(len(features(SPEED(torch.from_numpy(samples), factor))))


def with_tokens(utterance: Utterance, count: int) -> Utterance:
    """Return an utterance with the same audio and the text "abab...", which needs `count` frames."""
    return replace(utterance, text="ab" * (count // 2) + "a" * (count % 2))


def test_an_example_has_the_features_and_tokens_of_its_utterance(
    utterances: list[Utterance], features: Features
) -> None:
    dataset = SpeechDataset(utterances, features, REFERENCE)
    assert len(dataset) == len(utterances)
    example = good(dataset[Item(0, 3, 1.0)])
    samples, _ = soundfile.read(utterances[3].audio_filepath, dtype="float32")
    assert example.utterance == utterances[3]
    assert torch.equal(example.features, features(torch.from_numpy(samples)))
    assert TOKENIZER.decode(example.tokens.tolist()) == utterances[3].text


def test_an_example_does_not_depend_on_order_batches_or_workers(
    utterances: list[Utterance], features: Features
) -> None:
    dataset = SpeechDataset(utterances, features, REFERENCE, AUGMENTATION, seed=5)
    factors = torch.tensor([0.9, 1.0, 1.1] * 4, dtype=torch.float64)
    forwards = [[0, 1, 2], [3, 4, 5, 6, 7], [8, 9, 10, 11]]
    backwards = [[11, 3], [10, 9, 8, 0], [7, 6], [5, 4, 2, 1]]
    seen: list[dict[str, torch.Tensor]] = []
    for batches, num_workers in ((forwards, 0), (backwards, 0), (backwards, 2)):
        torch.manual_seed(len(seen))
        sampler = [[Item(2, position, float(factors[position])) for position in batch] for batch in batches]
        loader = DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=collate,
            num_workers=num_workers,
            multiprocessing_context="fork" if num_workers else None,
        )
        seen.append({})
        for batch in loader:
            for utterance, frames, length in zip(batch.utterances, batch.features, batch.feature_lengths, strict=True):
                seen[-1][utterance.id] = frames[:length]
    for other in seen[1:]:
        assert other.keys() == seen[0].keys() == {utterance.id for utterance in utterances}
        assert all(torch.equal(other[utterance_id], seen[0][utterance_id]) for utterance_id in other)


def test_an_example_is_computed_with_one_thread_as_in_a_worker(utterances: list[Utterance]) -> None:
    """On some processors, speed perturbation rounds differently with more threads."""
    numbers = []

    def watched(waveform: torch.Tensor) -> torch.Tensor:
        numbers.append(torch.get_num_threads())
        return waveform

    watching = replace(AUGMENTATION, waveform=[watched])
    dataset = SpeechDataset(utterances, build_features(CONFIG), REFERENCE, watching, seed=5)
    with torch_threads(3):
        good(dataset[Item(0, 0, 0.9)])
        assert torch.get_num_threads() == 3
    assert numbers == [1]


def test_another_epoch_seed_or_utterance_id_gives_another_augmentation(
    utterances: list[Utterance], features: Features
) -> None:
    dataset = SpeechDataset(utterances, features, REFERENCE, AUGMENTATION, seed=5)
    example = good(dataset[Item(0, 0, 1.0)]).features
    assert torch.equal(good(dataset[Item(0, 0, 1.0)]).features, example)
    assert not torch.equal(good(dataset[Item(1, 0, 1.0)]).features, example)
    other_seed = SpeechDataset(utterances, features, REFERENCE, AUGMENTATION, seed=6)
    assert not torch.equal(good(other_seed[Item(0, 0, 1.0)]).features, example)
    renamed = SpeechDataset([replace(utterances[0], id="another")], features, REFERENCE, AUGMENTATION, seed=5)
    assert not torch.equal(good(renamed[Item(0, 0, 1.0)]).features, example)
    moved = SpeechDataset(utterances[::-1], features, REFERENCE, AUGMENTATION, seed=5)
    assert torch.equal(good(moved[Item(0, len(utterances) - 1, 1.0)]).features, example)


def test_making_an_example_does_not_change_the_global_generator(
    utterances: list[Utterance], features: Features
) -> None:
    dataset = SpeechDataset(utterances, features, REFERENCE, AUGMENTATION)
    state = torch.get_rng_state()
    dataset[Item(0, 0, 0.9)]
    assert torch.equal(torch.get_rng_state(), state)


def test_speed_changes_the_audio_before_features_are_computed(utterances: list[Utterance], features: Features) -> None:
    dataset = SpeechDataset(utterances, features, REFERENCE, Augmentation(speed=SPEED))
    samples, _ = soundfile.read(utterances[0].audio_filepath, dtype="float32")
    for factor in SPEED.factors:
        expected = features(SPEED(torch.from_numpy(samples), factor))
        assert torch.equal(good(dataset[Item(0, 0, factor)]).features, expected)


def test_unreadable_audio_is_rejected_with_its_path_and_the_reason(
    utterances: list[Utterance], features: Features, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.flac"
    broken.write_bytes(b"not audio at all")
    absent = tmp_path / "absent.flac"
    bad = [replace(utterances[0], audio_filepath=str(path)) for path in (broken, absent)]
    dataset = SpeechDataset([*bad, utterances[1]], features, REFERENCE)
    for position, path in enumerate((broken, absent)):
        rejected = dataset[Item(0, position, 1.0)]
        assert isinstance(rejected, Rejected)
        assert str(path) in rejected.reason
        assert rejected.utterance is bad[position]
    assert "no such file" in dataset[Item(0, 1, 1.0)].reason
    assert isinstance(dataset[Item(0, 2, 1.0)], Example)


@pytest.mark.parametrize(("off_by", "is_rejected"), [(0.08, False), (-0.08, False), (0.3, True), (-0.3, True)])
def test_audio_whose_duration_differs_from_the_manifest_is_rejected(
    utterances: list[Utterance], features: Features, off_by: float, is_rejected: bool
) -> None:
    """Batches are planned by the durations of the manifest; differences of up to 0.1 s plus 1 % count as rounding."""
    utterance = replace(utterances[0], duration=utterances[0].duration + off_by)
    result = SpeechDataset([utterance], features, REFERENCE)[Item(0, 0, 1.0)]
    assert isinstance(result, Rejected) == is_rejected
    if isinstance(result, Rejected):
        assert utterance.audio_filepath in result.reason
        assert f"the manifest has {utterance.duration:.2f} s" in result.reason
        assert f"the audio {utterances[0].duration:.2f} s" in result.reason


def test_an_utterance_with_an_offset_is_a_segment_of_its_file(utterances: list[Utterance], features: Features) -> None:
    samples, _ = soundfile.read(utterances[0].audio_filepath, dtype="float32")
    segment = replace(utterances[0], offset=0.1, duration=0.25)
    example = good(SpeechDataset([segment], features)[Item(0, 0, 1.0)])
    assert torch.equal(example.features, features(torch.from_numpy(samples[1600 : 1600 + 4000])))
    assert len(example.tokens) == 0  # the data set was made without reference texts


def test_a_text_too_long_for_its_audio_is_rejected_exactly_at_the_limit_of_ctc(
    utterances: list[Utterance], features: Features
) -> None:
    frames = encoder_frames(utterances[0], features)
    repeats = replace(utterances[0], text="aa" + ("ba" * frames)[: frames - 3])  # one more frame for the repeated a
    assert CTC.min_frames(TOKENIZER.encode(repeats.text)) == frames
    fits = [with_tokens(utterances[0], frames), repeats]
    too_long = [with_tokens(utterances[0], frames + 1), replace(repeats, text=repeats.text[0] + repeats.text)]
    dataset = SpeechDataset([*fits, *too_long], features, REFERENCE)
    results = [dataset[Item(0, position, 1.0)] for position in range(4)]
    assert [isinstance(result, Example) for result in results] == [True, True, False, False]
    assert f"it needs {frames + 1} frames; the audio has {frames}" in results[2].reason
    assert f"it needs {frames + 2} frames; the audio has {frames}" in results[3].reason


def test_evaluation_rejects_no_text_because_of_its_length(utterances: list[Utterance], features: Features) -> None:
    much = with_tokens(utterances[0], 500)
    example = good(SpeechDataset([much], features, REFERENCE.for_evaluation())[Item(0, 0, 1.0)])
    assert len(example.tokens) == 500


def test_a_speed_at_which_the_tokens_do_not_fit_is_replaced_by_1(
    utterances: list[Utterance], features: Features
) -> None:
    at_1, at_11 = (encoder_frames(utterances[0], features, factor) for factor in (1.0, 1.1))
    assert at_11 < at_1
    dataset = SpeechDataset(
        [with_tokens(utterances[0], at_11), with_tokens(utterances[0], at_11 + 1)],
        features,
        REFERENCE,
        Augmentation(speed=SPEED),
    )
    still_fast = good(dataset[Item(0, 0, 1.1)])
    assert StridedConv.output_lengths(len(still_fast.features)) == at_11
    fallen_back = good(dataset[Item(0, 1, 1.1)])
    assert torch.equal(fallen_back.features, good(dataset[Item(0, 1, 1.0)]).features)


def test_energies_are_those_of_all_readable_utterances_in_an_order_set_by_the_seed(
    utterances: list[Utterance], features: Features
) -> None:
    absent = replace(utterances[0], audio_filepath="absent.flac", id="absent")
    actual = list(energies([*utterances, absent], features, seed=1))
    plain = [
        features.energies(torch.from_numpy(soundfile.read(u.audio_filepath, dtype="float32")[0])) for u in utterances
    ]
    order = [next(n for n, reference in enumerate(plain) if torch.equal(reference, other)) for other in actual]
    assert sorted(order) == list(range(len(utterances)))
    assert order != sorted(order)
    again = list(energies([*utterances, absent], features, seed=1))
    assert all(torch.equal(*pair) for pair in zip(actual, again, strict=True))


def test_selection_keeps_exactly_the_utterances_that_become_examples(
    utterances: list[Utterance], features: Features
) -> None:
    candidates = []
    for number, utterance in enumerate(utterances):
        frames = encoder_frames(utterance, features)
        for count in (1, frames - 1, frames, frames + 1, 2 * frames):
            candidates.append(replace(with_tokens(utterance, count), id=f"{number}-{count}"))
    dataset = SpeechDataset(candidates, features, REFERENCE)
    examples = [
        candidate for number, candidate in enumerate(candidates) if isinstance(dataset[Item(0, number, 1.0)], Example)
    ]
    selection = selected(candidates, features, SelectionBounds(0, 100))
    assert list(selection.utterances) == examples
    assert selection.counts.min_frames.tolist() == [len(example.text) for example in examples]
    (reason,) = selection.dropped
    assert "too long for its audio" in reason
    assert set(selection.dropped[reason].ids) == {candidate.id for candidate in candidates} - {
        example.id for example in examples
    }


def selected(candidates: list[Utterance], features: Features, bounds: SelectionBounds) -> Selection:
    utterances = Utterances.of(candidates)
    return select(utterances, count_tokens(utterances, REFERENCE), features, REFERENCE, bounds)


def test_selection_names_each_reason_and_keeps_utterances_exactly_at_a_limit(features: Features) -> None:
    def lasting(seconds: float, text: str = "ab") -> Utterance:
        return Utterance("never opened.flac", seconds, text, f"{seconds} {text}")

    candidates = [lasting(0.5), lasting(0.49), lasting(3.0), lasting(3.01), lasting(1.0, ""), lasting(0.5, "ab" * 20)]
    selection = selected(candidates, features, SelectionBounds(min_seconds=0.5, max_seconds=3.0))
    assert [utterance.id for utterance in selection.utterances] == ["0.5 ab", "3.0 ab"]
    reasons = {dropped.ids[0]: reason for reason, dropped in selection.dropped.items()}
    assert "shorter than data.min_seconds=0.5" in reasons["0.49 ab"]
    assert "longer than 3 s" in reasons["3.01 ab"]
    assert "empty once normalised" in reasons["1.0 "]
    assert "too long for its audio" in reasons["0.5 " + "ab" * 20]


def test_a_speed_is_feasible_if_the_tokens_fit_the_frames_at_that_speed(
    utterances: list[Utterance], features: Features
) -> None:
    candidates, expected = [], []
    for utterance in utterances[:5]:
        left = [encoder_frames(utterance, features, factor) for factor in SPEED.factors]
        for count in range(min(left) - 1, left[1] + 1):  # left[1] is the number of frames at speed 1.0
            candidates.append(replace(with_tokens(utterance, count), id=f"{utterance.id}-{count}"))
            expected.append([frames >= count for frames in left])
    selection = selected(candidates, features, SelectionBounds(0, 100))
    assert feasible_factors(selection, features, REFERENCE, SPEED).tolist() == expected
    assert [True, True, False] in expected


def example_of(num_frames: int, tokens: list[int]) -> Example:
    utterance = Utterance("a.flac", num_frames / 100, "", f"{num_frames}")
    return Example(utterance, torch.randn(num_frames, 4), torch.tensor(tokens, dtype=torch.int64))


def test_collate_pads_with_zeros_after_each_end_and_keeps_the_order() -> None:
    examples = [example_of(5, [3, 1]), example_of(9, []), example_of(0, [2, 2, 2])]
    batch = collate(examples)
    assert batch.features.shape == (3, 9, 4)
    assert batch.feature_lengths.tolist() == [5, 9, 0]
    assert batch.tokens.tolist() == [[3, 1, 0], [0, 0, 0], [2, 2, 2]]
    assert batch.token_lengths.tolist() == [2, 0, 3]
    assert batch.utterances == tuple(example.utterance for example in examples)
    for row, example in zip(batch.features, examples, strict=True):
        frames = len(example.features)
        assert torch.equal(row[:frames], example.features)
        assert not row[frames:].any()


def test_collate_returns_rejected_utterances_beside_the_batch() -> None:
    first, second = example_of(5, [3, 1]), example_of(9, [1])
    rejected = Rejected(Utterance("b.flac", 1.0, "", "b"), "cannot be read")
    batch = collate([first, rejected, second])
    assert len(batch) == 2
    assert batch.utterances == (first.utterance, second.utterance)
    assert batch.rejected == (rejected,)


def test_a_batch_with_only_rejected_utterances_is_empty() -> None:
    rejected = Rejected(Utterance("b.flac", 1.0, "", "b"), "cannot be read")
    batch = collate([rejected])
    assert len(batch) == len(batch.features) == len(batch.tokens) == len(batch.feature_lengths) == 0
    assert batch.rejected == (rejected,)


def test_a_batch_moves_to_a_device_as_a_whole() -> None:
    batch: Batch = replace(collate([example_of(5, [3, 1])]), conditions={"language": torch.tensor([2])})
    moved = batch.to("meta")
    tensors = (moved.features, moved.feature_lengths, moved.tokens, moved.token_lengths, moved.conditions["language"])
    assert all(tensor.device.type == "meta" for tensor in tensors)
    assert moved.utterances == batch.utterances
    assert moved.num_frames == (5,), "the lengths stay on the CPU"
