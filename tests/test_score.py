"""Word and character errors, compared with a plain edit distance, jiwer and kaldialign."""

import math
import random
from collections.abc import Callable

import jiwer
import kaldialign
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asr.base.text.word_errors import Edit, ErrorCounts, align_words, count_characters, count_errors, right_words, total

WORDS = st.lists(st.sampled_from(["a", "b", "c", "ab"]), max_size=8)
COUNTS = st.builds(ErrorCounts, *[st.integers(0, 100)] * 5)


def edit_distance(reference: list[str], hypothesis: list[str]) -> int:
    """Return the minimum number of substitutions, insertions and deletions, by dynamic programming."""
    table = [[0] * (len(hypothesis) + 1) for _ in range(len(reference) + 1)]
    for i in range(len(reference) + 1):
        for j in range(len(hypothesis) + 1):
            if i == 0 or j == 0:
                table[i][j] = i + j
            else:
                substitution = table[i - 1][j - 1] + (reference[i - 1] != hypothesis[j - 1])
                table[i][j] = min(substitution, table[i - 1][j] + 1, table[i][j - 1] + 1)
    return table[-1][-1]


@given(WORDS, WORDS)
def test_the_number_of_errors_is_the_edit_distance_of_the_words(reference: list[str], hypothesis: list[str]) -> None:
    counts = count_errors(" ".join(reference), " ".join(hypothesis))
    assert counts.errors == edit_distance(reference, hypothesis)
    assert counts.reference_length == len(reference)
    assert counts.insertions - counts.deletions == len(hypothesis) - len(reference)
    assert counts.utterances == 1


@given(WORDS, WORDS, st.sampled_from(["  ", "\t", "\n", "\u00a0", " \t "]))
@example(["a", "b"], ["a", "b"], "\t")
def test_any_white_space_separates_words(reference: list[str], hypothesis: list[str], space: str) -> None:
    expected = count_errors(" ".join(reference), " ".join(hypothesis))
    assert count_errors(space.join(reference), space + space.join(hypothesis) + space) == expected


@pytest.mark.parametrize(
    ("count", "reference", "hypothesis", "expected"),
    [
        (count_errors, "the cat sat", "the cat sat", ErrorCounts(0, 0, 0, 3, 1)),
        (count_errors, "the cat sat", "the dog sat", ErrorCounts(1, 0, 0, 3, 1)),
        (count_errors, "the cat sat", "the cat sat down", ErrorCounts(0, 1, 0, 3, 1)),
        (count_errors, "the cat sat", "cat sat", ErrorCounts(0, 0, 1, 3, 1)),
        (count_errors, "the cat sat", "", ErrorCounts(0, 0, 3, 3, 1)),
        (count_errors, "", "the cat", ErrorCounts(0, 2, 0, 0, 1)),
        (count_errors, "", "", ErrorCounts(0, 0, 0, 0, 1)),
        (count_characters, "abc", "abd", ErrorCounts(1, 0, 0, 3, 1)),
        (count_characters, "ab cd", "abcd", ErrorCounts(0, 0, 1, 5, 1)),  # the space between words is a character
        (
            count_characters,
            "ab  cd ",
            "ab cd",
            ErrorCounts(0, 0, 0, 5, 1),
        ),  # white space of any width is one character; at the end it does not count
        (count_characters, "e\u0301", "\u00e9", ErrorCounts(1, 0, 1, 2, 1)),  # a combining mark counts as a character
        (count_characters, "\U0001f600a", "\U0001f600b", ErrorCounts(1, 0, 0, 2, 1)),  # code points above 16 bits
        (count_characters, "ab", "", ErrorCounts(0, 0, 2, 2, 1)),
        (count_characters, "", "a b", ErrorCounts(0, 3, 0, 0, 1)),
        (count_characters, "", "", ErrorCounts(0, 0, 0, 0, 1)),
        (count_characters, " ", "\t", ErrorCounts(0, 0, 0, 0, 1)),
    ],
)
def test_each_kind_of_error_is_counted_in_words_and_in_characters(
    count: Callable[[str, str], ErrorCounts], reference: str, hypothesis: str, expected: ErrorCounts
) -> None:
    assert count(reference, hypothesis) == expected


@given(st.lists(COUNTS))
def test_the_counts_of_a_set_are_sums_and_its_wer_is_divided_once(counts: list[ErrorCounts]) -> None:
    whole = total(counts)
    for field in ("substitutions", "insertions", "deletions", "reference_length", "utterances", "errors"):
        assert getattr(whole, field) == sum(getattr(count, field) for count in counts)
    if whole.utterances and whole.reference_length:
        assert whole.rate == sum(count.errors for count in counts) / sum(count.reference_length for count in counts)


def test_counts_survive_the_exchange_between_ranks() -> None:
    counts = ErrorCounts(substitutions=1, insertions=2, deletions=3, reference_length=40, utterances=5)
    assert ErrorCounts(*counts.as_tuple()) == counts


def test_wer_is_a_fraction_that_may_exceed_1_and_is_nan_without_a_reference() -> None:
    assert count_errors("a b c d", "a x c d").rate == 0.25
    assert count_errors("a", "x y z").rate == 3.0
    assert math.isnan(count_errors("", "x").rate)
    assert math.isnan(count_errors("", "").rate)


def test_a_rate_without_a_reference_is_null_in_json() -> None:
    assert count_errors("", "x").as_dict()["rate"] is None
    assert ErrorCounts().as_dict()["rate"] is None, "there are no utterances"
    assert count_errors("", "").as_dict()["rate"] is None
    assert count_errors("a b", "a c").as_dict() == {
        "rate": 0.5,
        "substitutions": 1,
        "insertions": 0,
        "deletions": 0,
        "errors": 1,
        "reference_length": 2,
    }


# ---- agreement with other programs

# Words of random texts, including some that a recogniser never writes.
ODD = [
    "a",
    "b",
    "A",
    "e\u0301",
    "\u00e9",
    "\u0301",
    "\u05e9\u05dc",
    "\u4f60\u597d",
    "\U0001f600",
    "\u200d",
    "\udcff",
    "*",
    "<eps>",
    "'",
]
TEXTS = st.one_of(
    st.lists(st.sampled_from(ODD), max_size=12).map(" ".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
)


@given(TEXTS, TEXTS)
def test_errors_in_words_and_characters_equal_those_of_jiwer_and_kaldialign(reference: str, hypothesis: str) -> None:
    words, characters = count_errors(reference, hypothesis), count_characters(reference, hypothesis)
    spaced = " ".join(reference.split()), " ".join(hypothesis.split())
    assert words.errors == kaldialign.edit_distance(reference.split(), hypothesis.split())["total"]
    assert characters.errors == kaldialign.edit_distance(list(spaced[0]), list(spaced[1]))["total"]
    if spaced[0]:
        assert words.rate == jiwer.wer(*spaced)
        assert characters.rate == jiwer.cer(*spaced)


def ways(reference: list[str], hypothesis: list[str]) -> set[tuple[int, int, int]]:
    """Return the numbers of substitutions, insertions and deletions of each alignment with the fewest errors."""
    table: dict[tuple[int, int], set[tuple[int, int, int]]] = {(0, 0): {(0, 0, 0)}}
    for i in range(len(reference) + 1):
        for j in range(len(hypothesis) + 1):
            counts = set(table.get((i, j), ()))
            if i and j:
                wrong = int(reference[i - 1] != hypothesis[j - 1])
                counts |= {(s + wrong, n, d) for s, n, d in table[i - 1, j - 1]}
            if j:
                counts |= {(s, n + 1, d) for s, n, d in table[i, j - 1]}
            if i:
                counts |= {(s, n, d + 1) for s, n, d in table[i - 1, j]}
            fewest = min(map(sum, counts))
            table[i, j] = {way for way in counts if sum(way) == fewest}
    return table[len(reference), len(hypothesis)]


@given(WORDS, WORDS)
@example(list("ccacb"), list("cbacaac"))  # jiwer: 3 insertions, 1 deletion; kaldialign: 2 insertions, 2 substitutions
def test_kinds_of_errors_equal_those_of_kaldialign_if_the_alignment_is_unique(
    reference: list[str], hypothesis: list[str]
) -> None:
    """Otherwise an insertion and a deletion may replace two substitutions, and programs choose differently."""
    counts = count_errors(" ".join(reference), " ".join(hypothesis))
    theirs = kaldialign.edit_distance(reference, hypothesis)
    possible = ways(reference, hypothesis)
    assert (counts.substitutions, counts.insertions, counts.deletions) in possible
    assert (theirs["sub"], theirs["ins"], theirs["del"]) in possible


@pytest.mark.parametrize("vocabulary", [["the"], ["a", "b"], [f"word{number}" for number in range(70_000)]])
def test_errors_in_long_texts_equal_those_of_kaldialign(vocabulary: list[str]) -> None:
    """2,000 words are about a quarter of an hour of speech; 70,000 different words exceed 16-bit ids."""
    draw = random.Random(0)
    reference = [draw.choice(vocabulary) for _ in range(2000)]
    hypothesis = [draw.choice(vocabulary) if draw.random() < 0.1 else word for word in reference if draw.random() < 0.9]
    counts = count_errors(" ".join(reference), " ".join(hypothesis))
    assert counts.errors == kaldialign.edit_distance(reference, hypothesis)["total"]


def test_60000_different_words_are_distinguished() -> None:
    reference = [f"word{number}" for number in range(60_000)]
    hypothesis = ["wrong" if number % 10 == 3 else word for number, word in enumerate(reference)]
    assert count_errors(" ".join(reference), " ".join(hypothesis)) == ErrorCounts(6000, 0, 0, 60_000, 1)


# ---- the alignment itself


@given(WORDS, WORDS)
@example(["a"], [])
@example([], ["a", "b"])
def test_an_alignment_contains_each_word_once_in_order_and_has_the_counted_errors(
    reference: list[str], hypothesis: list[str]
) -> None:
    texts = " ".join(reference), " ".join(hypothesis)
    edits = align_words(*texts)
    assert [edit.reference for edit in edits if edit.reference is not None] == reference
    assert [edit.hypothesis for edit in edits if edit.hypothesis is not None] == hypothesis
    for edit in edits:
        if edit.kind == "insertion":
            assert edit.reference is None
        elif edit.kind == "deletion":
            assert edit.hypothesis is None
        else:
            assert (edit.reference == edit.hypothesis) == (edit.kind == "equal")
    kinds = [edit.kind for edit in edits]
    counted = [kinds.count(kind) for kind in ("substitution", "insertion", "deletion")]
    assert ErrorCounts(*counted, len(reference), 1) == count_errors(*texts)
    assert right_words(*texts) == [edit.kind == "equal" for edit in edits if edit.hypothesis is not None]


def test_an_alignment_is_from_the_reference_to_the_hypothesis() -> None:
    assert align_words("the cat sat  on it", "oh the hat sat it") == [
        Edit("insertion", None, "oh"),
        Edit("equal", "the", "the"),
        Edit("substitution", "cat", "hat"),
        Edit("equal", "sat", "sat"),
        Edit("deletion", "on", None),
        Edit("equal", "it", "it"),
    ]
