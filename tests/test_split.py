"""asr.data.split: parts share no speaker, recording or text if that is possible, and depend on the ids alone."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.data.manifest import Utterance
from asr.data.split import MIN_CLIPS, MIN_PART, Split, describe, split
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


def test_one_speaker_of_nearly_all_clips_does_not_prevent_a_split() -> None:
    clips = [clip(number, speaker=str(number) if number < 4 else "most") for number in range(60)]
    parts = split(clips, seed=0)
    assert parts.by == "clip"
    assert len(parts.test) >= MIN_PART


def test_equal_texts_are_in_one_part_where_that_leaves_each_part_its_share() -> None:
    parts = split([clip(number, text=f"Text  {number % 30}") for number in range(90)], seed=0)
    assert disjoint(names(parts, "text"))
    assert parts.shared_texts == 0
    digits = split([clip(number, text=f"digit {number % 2}") for number in range(90)], seed=0)
    assert digits.shared_texts == len(digits.test) == pytest.approx(18, abs=1)
    assert any(str(digits.shared_texts) in line for line in list(describe(digits))[1:])


def test_empty_texts_are_not_equal_texts() -> None:
    parts = split([clip(number, text="") for number in range(60)], seed=0)
    assert (len(parts.test), parts.shared_texts) == (12, 0)


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
    if parts.by != "clip":
        assert disjoint(names(parts, {"speaker": "speaker", "recording": "audio_filepath"}[parts.by])[::2])
    chooser.shuffle(clips)
    assert split(clips, seed) == parts
