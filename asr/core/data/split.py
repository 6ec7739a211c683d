"""Split a corpus into training, validation and test: speakers, recordings and texts stay on one side if possible."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple
from unicodedata import category

from asr.base.system.seeds import derive_seed
from asr.base.text.numbers import counted
from asr.core.data.manifest import Utterance
from asr.errors import InputError

MIN_CLIPS = 40  # a corpus with fewer utterances is not split
MIN_SPEAKERS = 5  # a corpus with fewer speakers is not split by speaker
MIN_RECORDINGS = 5
TEST_SHARE = 0.2  # of the utterances
MIN_PART = 12  # utterances; the 95 % interval of a WER of 30 % is then some 30 points wide
MAX_PART_SECONDS = 3600.0
VALID_SHARE = 0.1
MIN_CLIPS_WITH_VALID = 200  # below, a tenth of the utterances is too few to select checkpoints
TOLERANCE = 0.5  # permitted difference of a part from its share, relative to the share

Groups = list[list[Utterance]]
Taken = tuple[str, list[Utterance]]  # the unit that is not divided, and the utterances of a part


class Split(NamedTuple):
    """A corpus in three parts.

    Args:
        train: training utterances.
        valid: validation utterances; [] for a small corpus.
        test: test utterances; [] if other data is the test.
        by: what is in the test or outside of it as a whole: "speaker", "recording" or "clip"; "" without a test.
            Recordings of unknown speakers count as speakers of their own.
        valid_by: the same for the validation set and the training set.
    """

    train: list[Utterance]
    valid: list[Utterance]
    test: list[Utterance]
    by: str
    valid_by: str


def split(utterances: Sequence[Utterance], seed: int, with_test: bool = True) -> Split:
    """Split utterances, in any order; an equal seed gives equal parts.

    The test set has a fifth of the utterances, at least `MIN_PART`, at most an hour; from `MIN_CLIPS_WITH_VALID`
    utterances on, a tenth is for validation. From `MIN_SPEAKERS` speakers on, the test has other speakers than the
    other parts, or else other recordings, if that gives it about its share; likewise for the validation and the
    training set. Utterances of equal texts are in one part, unless a part would then be too small or too large.

    Args:
        utterances: all utterances.
        seed: seed of the choice.
        with_test: whether a part is for the test.

    Raises:
        InputError: there are too few utterances for a test.
    """
    if with_test and len(utterances) < MIN_CLIPS:
        must = f"DATA must have at least {MIN_CLIPS} utterances, of which some are for the test"
        raise InputError(f"{must}; got {len(utterances)}. Record more, or give other data for the test by --test DATA.")
    mean = sum(utterance.duration for utterance in utterances) / len(utterances)
    units = list(_units(utterances))

    def part(share: float, rest: Sequence[Utterance], purpose: str) -> Taken:
        target = max(MIN_PART, min(round(share * len(utterances)), int(MAX_PART_SECONDS / mean)))
        return _part(rest, target, units, derive_seed("split", purpose, seed))

    by, test = part(TEST_SHARE, utterances, "test") if with_test else ("", [])
    rest = _without(utterances, test)
    has_valid = len(utterances) >= MIN_CLIPS_WITH_VALID
    valid_by, valid = part(VALID_SHARE, rest, "valid") if has_valid else ("", [])
    return Split(_without(rest, valid), valid, test, by, valid_by)


def halves(utterances: Sequence[Utterance], seed: int) -> tuple[list[Utterance], list[Utterance]]:
    """Divide utterances into two halves: speakers, recordings and texts are in one half if that makes it no third.

    Args:
        utterances: at least two utterances.
        seed: seed of the choice.
    """
    for unit, with_texts in product(_units(utterances), (True, False)):
        groups = _groups(utterances, _UNITS[unit])
        if with_texts:
            groups = _joined_by_text(groups)
        halves: tuple[list[Utterance], list[Utterance]] = [], []
        for group in sorted(groups, key=lambda group: derive_seed("halves", seed, min(each.id for each in group))):
            min(halves, key=len).extend(group)
        if 3 * min(map(len, halves)) > len(utterances):
            break
    first, second = (sorted(half, key=lambda utterance: utterance.id) for half in halves)
    return first, second


def num_shared_texts(train: Iterable[str], test: Iterable[str]) -> int:
    """Count the test texts that are also in `train`; empty texts do not count.

    Case and punctuation are ignored, and letters that no training text has, because a model's tokens may lack them.
    """
    texts = set(map(_plain, train)) - {""}
    letters = set().union(*texts)
    return sum(" ".join("".join(filter(letters.__contains__, _plain(text))).split()) in texts for text in test)


def describe(parts: Split) -> Iterator[str]:
    """Yield lines about a split, with the number of utterances and minutes of each part."""
    for name, part, by, others, of_others in (
        ("training", parts.train, "", [], ""),
        ("validation", parts.valid, parts.valid_by, parts.train, "the training set"),
        ("test", parts.test, parts.by, parts.train + parts.valid, "the other sets"),
    ):
        if part:
            minutes = sum(utterance.duration for utterance in part) / 60
            apart = f", {_apart(by, part, others, of_others)}" if by else ""
            yield f"{name}: {counted(len(part), 'utterance')}, {minutes:.1f} min{apart}"


def _apart(unit: str, part: Sequence[Utterance], others: Sequence[Utterance], of_others: str) -> str:
    """Return what is known of the speakers, recordings or clips of a part: no claim is made about unknown speakers."""
    unknown = sum(utterance.speaker is None for utterance in (*part, *others)) if unit == "speaker" else 0
    if unknown:
        return f"which may have speakers of {of_others}: {counted(unknown, 'utterance')} of these sets name none"
    return f"other {unit}s than in {of_others}"


def describe_shared(number: int, num_tests: int) -> str:
    """Return a line about `number` of `num_tests` test utterances with a training text."""
    return f"the test has texts of the training set: {number:,} of {counted(num_tests, 'utterance')}"


def _part(utterances: Sequence[Utterance], target: int, units: Sequence[str], seed: int) -> Taken:
    """Choose about `target` utterances by the first unit that allows it."""
    for unit, with_texts in product(units, (True, False)):
        groups = _groups(utterances, _UNITS[unit])
        if with_texts:
            groups = _joined_by_text(groups)
        if chosen := _chosen(groups, target, seed):
            return unit, chosen
    raise AssertionError("single utterances can always be chosen")


def _units(utterances: Sequence[Utterance]) -> Iterator[str]:
    if len({utterance.speaker for utterance in utterances} - {None}) >= MIN_SPEAKERS:
        yield "speaker"
    if MIN_RECORDINGS <= len({utterance.audio_filepath for utterance in utterances}) < len(utterances):
        yield "recording"
    yield "clip"


_UNITS: dict[str, Callable[[Utterance], object]] = {
    "speaker": lambda utterance: utterance.speaker or (utterance.audio_filepath,),  # an unknown one may be any
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
    for group in sorted(groups, key=lambda group: derive_seed(seed, min(each.id for each in group))):
        added = sum(utterance.duration for utterance in group)
        if len(chosen) < target and len(chosen) + len(group) <= most and seconds + added <= max_seconds:
            chosen += group
            seconds += added
    return sorted(chosen, key=lambda utterance: utterance.id) if len(chosen) >= least else []


def _without(utterances: Sequence[Utterance], part: Sequence[Utterance]) -> list[Utterance]:
    ids = {utterance.id for utterance in part}
    return sorted((each for each in utterances if each.id not in ids), key=lambda utterance: utterance.id)


def _plain(text: str) -> str:
    """Return a text without case and punctuation."""
    folded = text.casefold()
    # Marks are parts of letters in many scripts.
    letters = (each if each.isalnum() or category(each)[0] == "M" else " " for each in folded)
    return " ".join("".join(letters).split())
