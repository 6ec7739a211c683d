"""asr.core.data.split: parts share no speaker, recording or text if that is possible, and depend on the ids alone."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.core.data.manifest import Utterance
from asr.core.data.split import MIN_CLIPS, MIN_PART, Split, describe, num_shared_texts, split
from asr.errors import InputError
from tests.refusals import refused


def clip(
    number: int, text: str | None = None, speaker: str | None = None, audio: str | None = None, seconds: float = 3.0
) -> Utterance:
    text = f"text {number}" if text is None else text
    return Utterance(audio or f"{number}.wav", seconds, text, f"clip-{number}", speaker=speaker)


def names(parts: Split, of: str) -> list[set[object]]:
    return [{getattr(utterance, of) for utterance in part} for part in (parts.train, parts.valid, parts.test)]


def disjoint(sets: list[set[object]]) -> bool:
    return sum(map(len, sets)) == len(set().union(*sets))


def test_speakers_are_in_one_part_from_five_speakers_on() -> None:
    five = split([clip(number, speaker=str(number % 5)) for number in range(60)], seed=0)
    assert five.by == "speaker"
    assert disjoint(names(five, "speaker"))
    four = split([clip(number, speaker=str(number % 4)) for number in range(60)], seed=0)
    assert four.by == "clip"


def test_recordings_are_in_one_part_if_speakers_are_unknown() -> None:
    parts = split([clip(number, audio=f"{number % 10}.wav") for number in range(100)], seed=0)
    assert parts.by == "recording"
    assert disjoint(names(parts, "audio_filepath"))


def test_the_validation_has_other_speakers_too_if_there_are_enough() -> None:
    parts = split([clip(number, speaker=str(number % 20)) for number in range(300)], seed=0)
    assert (parts.by, parts.valid_by) == ("speaker", "speaker")
    assert disjoint(names(parts, "speaker"))
    few = split([clip(number, speaker=str(number % 5)) for number in range(300)], seed=0)  # one is 20 % of the clips
    assert (few.by, few.valid_by) == ("speaker", "clip")
    assert any("other clips" in line for line in describe(few))


def test_an_utterance_of_an_unknown_speaker_does_not_prevent_a_split_by_speaker() -> None:
    clips = [clip(number, speaker=None if number == 7 else str(number % 20)) for number in range(100)]
    parts = split(clips, seed=0)
    assert parts.by == "speaker"
    assert disjoint([{each.speaker or each.id for each in part} for part in (parts.train, parts.test)])


def test_other_data_for_the_test_leaves_a_validation_set() -> None:
    parts = split([clip(number) for number in range(300)], seed=0, with_test=False)
    assert (len(parts.train), len(parts.valid), len(parts.test)) == (270, 30, 0)
    assert len(split([clip(number) for number in range(3)], seed=0, with_test=False).train) == 3


def test_texts_are_compared_without_case_punctuation_and_letters_that_no_training_text_has() -> None:
    assert num_shared_texts(["Hello, you!", "", "caf open"], ["hello you", "CAFÉ, OPEN", "other", ""]) == 2


def test_one_speaker_of_nearly_all_clips_does_not_prevent_a_split() -> None:
    clips = [clip(number, speaker=str(number) if number < 4 else "most") for number in range(60)]
    parts = split(clips, seed=0)
    assert parts.by == "clip"
    assert len(parts.test) >= MIN_PART


def test_equal_texts_are_in_one_part_where_that_leaves_each_part_its_share() -> None:
    parts = split([clip(number, text=f"Text  {number % 30}") for number in range(90)], seed=0)
    assert disjoint(names(parts, "text"))
    digits = split([clip(number, text=f"digit {number % 2}") for number in range(90)], seed=0)
    assert len(digits.test) == pytest.approx(18, abs=1)
    assert names(digits, "text")[0] == names(digits, "text")[2]


def test_empty_texts_are_not_equal_texts() -> None:
    parts = split([clip(number, text="") for number in range(60)], seed=0)
    assert len(parts.test) == 12


def test_a_small_corpus_has_no_validation_and_a_tiny_one_is_refused() -> None:
    assert not split([clip(number) for number in range(199)], seed=0).valid
    parts = split([clip(number) for number in range(200)], seed=0)
    assert (len(parts.train), len(parts.valid), len(parts.test)) == (140, 20, 40)
    with refused(InputError, f"DATA ... {MIN_CLIPS}", got=39, cure="--test DATA"):
        split([clip(number) for number in range(39)], seed=0)


def test_the_test_has_at_most_an_hour() -> None:
    parts = split([clip(number, seconds=20.0) for number in range(3000)], seed=0)
    assert sum(utterance.duration for utterance in parts.test) == pytest.approx(3600, abs=20)
    assert len(split([clip(number, seconds=600.0) for number in range(40)], seed=0).test) == MIN_PART


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(MIN_CLIPS, 400),
    speakers=st.integers(1, 12) | st.none(),
    texts=st.integers(1, 400),
    recordings=st.integers(1, 400),
    seed=st.integers(0, 3),
)
def test_each_utterance_is_in_one_part_in_any_order(
    count: int, speakers: int | None, texts: int, recordings: int, seed: int
) -> None:
    chooser = random.Random(count)
    clips = [
        clip(
            number,
            text=f"text {chooser.randrange(texts)}",
            speaker=None if speakers is None else str(chooser.randrange(speakers)),
            audio=f"{number % recordings}.wav",
            seconds=chooser.uniform(0.5, 30),
        )
        for number in range(count)
    ]
    parts = split(clips, seed)
    assert sorted(each.id for part in parts[:3] for each in part) == sorted(each.id for each in clips)
    assert MIN_PART <= len(parts.test) <= 0.31 * count + 8
    assert bool(parts.valid) == (count >= 200)
    attribute = {"speaker": "speaker", "recording": "audio_filepath", "clip": "id"}
    train, valid, test = names(parts, attribute[parts.by])
    assert not (train | valid) & test
    if parts.valid:
        train, valid, _ = names(parts, attribute[parts.valid_by])
        assert not train & valid
    chooser.shuffle(clips)
    assert split(clips, seed) == parts
