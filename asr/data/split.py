"""Split a corpus into training, validation and test: speakers, recordings and texts stay on one side if possible."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from asr.data.manifest import Utterance
from asr.data.seeds import derive_seed
from asr.errors import InputError
from asr.text.numbers import counted

MIN_CLIPS = 40  # a corpus with fewer utterances is not split
MIN_SPEAKERS = 5  # a corpus with fewer speakers is not split by speaker
MIN_RECORDINGS = 5
TEST_SHARE = 0.2  # of the utterances
MIN_PART = 12  # utterances; the 95 % interval of a WER of 20 % is then some 15 points wide
MAX_PART_SECONDS = 3600.0
VALID_SHARE = 0.1
MIN_CLIPS_WITH_VALID = 200  # below, a tenth of the utterances is too few to select checkpoints
TOLERANCE = 0.5  # permitted difference of a part from its share, relative to the share

Groups = list[list[Utterance]]


class Split(NamedTuple):
    """A corpus in three parts.

    Args:
        train: training utterances.
        valid: validation utterances; [] for a small corpus.
        test: test utterances.
        by: what is on one side only: "speaker", "recording" or "clip".
        shared_texts: number of test utterances whose text also occurs in `train`.
    """

    train: list[Utterance]
    valid: list[Utterance]
    test: list[Utterance]
    by: str
    shared_texts: int


def split(utterances: Sequence[Utterance], seed: int) -> Split:
    """Split utterances, in any order; an equal seed gives equal parts.

    The test set has a fifth of the utterances, at least `MIN_PART`, at most an hour; from `MIN_CLIPS_WITH_VALID`
    utterances on, a tenth is for validation. From `MIN_SPEAKERS` speakers on, no speaker is in two parts; otherwise no
    recording, if there are enough of them. Utterances of equal texts are in one part, unless a part would then be too
    small or too large.

    Raises:
        InputError: there are too few utterances.
    """
    if len(utterances) < MIN_CLIPS:
        must = f"DATA must have at least {MIN_CLIPS} utterances, of which some are for the test"
        raise InputError(f"{must}; got {len(utterances)}. Record more, or give other data for the test by --test DATA.")
    mean = sum(utterance.duration for utterance in utterances) / len(utterances)

    def number(share: float) -> int:
        return max(MIN_PART, min(round(share * len(utterances)), int(MAX_PART_SECONDS / mean)))

    by, test = _part(utterances, number(TEST_SHARE), seed)
    train = _without(utterances, test)
    valid: list[Utterance] = []
    if len(utterances) >= MIN_CLIPS_WITH_VALID:
        _, valid = _part(train, number(VALID_SHARE), seed + 1)
        train = _without(train, valid)
    shared = num_shared_texts((each.text for each in train), (each.text for each in test))
    return Split(train, valid, test, by, shared)


def num_shared_texts(train: Iterable[str], test: Iterable[str]) -> int:
    """Count the test texts that, in any case, are also in `train`; empty texts do not count."""
    texts = set(map(_plain, train)) - {""}
    return sum(_plain(text) in texts for text in test)


def describe(parts: Split) -> Iterator[str]:
    """Yield lines about a split, with the number of utterances and minutes of each part."""
    sizes = []
    for name, part in (("training", parts.train), ("validation", parts.valid), ("test", parts.test)):
        minutes = sum(utterance.duration for utterance in part) / 60
        sizes.append(f"{name} {counted(len(part), 'utterance')}, {minutes:.1f} min" if part else f"no {name}")
    yield f"split by {parts.by}: {'; '.join(sizes)}"
    if parts.shared_texts:
        yield describe_shared(parts.shared_texts, len(parts.test))


def describe_shared(number: int, num_tests: int) -> str:
    """Return a line about `number` of `num_tests` test utterances with a training text."""
    return f"the test has texts of the training set: {number:,} of {counted(num_tests, 'utterance')}"


def _part(utterances: Sequence[Utterance], target: int, seed: int) -> tuple[str, list[Utterance]]:
    """Choose about `target` utterances; return them and the unit that is not divided."""
    for unit, with_texts in product(_units(utterances), (True, False)):
        groups = _groups(utterances, _UNITS[unit])
        if with_texts:
            groups = _joined_by_text(groups)
        if chosen := _chosen(groups, target, seed):
            return unit, chosen
    raise AssertionError("single utterances can always be chosen")


def _units(utterances: Sequence[Utterance]) -> Iterator[str]:
    speakers = {utterance.speaker for utterance in utterances}
    if None not in speakers and len(speakers) >= MIN_SPEAKERS:
        yield "speaker"
    if MIN_RECORDINGS <= len({utterance.audio_filepath for utterance in utterances}) < len(utterances):
        yield "recording"
    yield "clip"


_UNITS: dict[str, Callable[[Utterance], object]] = {
    "speaker": lambda utterance: utterance.speaker,
    "recording": lambda utterance: utterance.audio_filepath,
    "clip": lambda utterance: utterance.id,
}


def _groups(utterances: Sequence[Utterance], key: Callable[[Utterance], object]) -> Groups:
    groups: dict[object, list[Utterance]] = {}
    for utterance in utterances:
        groups.setdefault(key(utterance), []).append(utterance)
    return list(groups.values())


def _joined_by_text(groups: Groups) -> Groups:
    """Join groups that have an utterance of equal text, directly or through other groups."""
    first: dict[str, int] = {}  # the first group with a text
    earlier = list(range(len(groups)))  # of each group, a group that it is joined with; itself: the group's root

    def root(number: int) -> int:
        while earlier[number] != number:
            earlier[number] = earlier[earlier[number]]
            number = earlier[number]
        return number

    for number, group in enumerate(groups):
        for text in {_plain(utterance.text) for utterance in group} - {""}:
            earlier[root(number)] = root(first.setdefault(text, number))
    joined: dict[int, list[Utterance]] = {}
    for number, group in enumerate(groups):
        joined.setdefault(root(number), []).extend(group)
    return list(joined.values())


def _chosen(groups: Groups, target: int, seed: int) -> list[Utterance]:
    """Choose groups, in an order that depends on their ids alone; [] if no choice is near the target."""
    least, most = max(MIN_PART, (1 - TOLERANCE) * target), (1 + TOLERANCE) * target
    max_seconds = max(MAX_PART_SECONDS, MIN_PART * max(each.duration for group in groups for each in group))
    chosen: list[Utterance] = []
    seconds = 0.0
    for group in sorted(groups, key=lambda group: derive_seed("split", seed, min(each.id for each in group))):
        added = sum(utterance.duration for utterance in group)
        if len(chosen) < target and len(chosen) + len(group) <= most and seconds + added <= max_seconds:
            chosen += group
            seconds += added
    return sorted(chosen, key=lambda utterance: utterance.id) if len(chosen) >= least else []


def _without(utterances: Sequence[Utterance], part: Sequence[Utterance]) -> list[Utterance]:
    ids = {utterance.id for utterance in part}
    return sorted((each for each in utterances if each.id not in ids), key=lambda utterance: utterance.id)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
