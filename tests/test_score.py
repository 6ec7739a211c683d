"""Word errors against a plain edit distance."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asr.score import ErrorCounts, count_errors, total

WORDS = st.lists(st.sampled_from(["a", "b", "c", "ab"]), max_size=8)
COUNTS = st.builds(ErrorCounts, *[st.integers(0, 100)] * 5)


def edit_distance(reference: list[str], hypothesis: list[str]) -> int:
    """Fewest substitutions, insertions and deletions, by the table."""
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
def test_errors_are_the_edit_distance_of_the_words(reference: list[str], hypothesis: list[str]) -> None:
    counts = count_errors(" ".join(reference), " ".join(hypothesis))
    assert counts.errors == edit_distance(reference, hypothesis)
    assert counts.reference_words == len(reference)
    assert counts.insertions - counts.deletions == len(hypothesis) - len(reference)
    assert counts.utterances == 1


@given(WORDS, WORDS, st.sampled_from(["  ", "\t", "\n", "\u00a0", " \t "]))
@example(["a", "b"], ["a", "b"], "\t")
def test_any_white_space_parts_words(reference: list[str], hypothesis: list[str], space: str) -> None:
    expected = count_errors(" ".join(reference), " ".join(hypothesis))
    assert count_errors(space.join(reference), space + space.join(hypothesis) + space) == expected


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("the cat sat", "the cat sat", ErrorCounts(0, 0, 0, 3, 1)),
        ("the cat sat", "the dog sat", ErrorCounts(1, 0, 0, 3, 1)),
        ("the cat sat", "the cat sat down", ErrorCounts(0, 1, 0, 3, 1)),
        ("the cat sat", "cat sat", ErrorCounts(0, 0, 1, 3, 1)),
        ("the cat sat", "", ErrorCounts(0, 0, 3, 3, 1)),
        ("", "the cat", ErrorCounts(0, 2, 0, 0, 1)),
        ("", "", ErrorCounts(0, 0, 0, 0, 1)),
    ],
)
def test_errors_are_told_apart(reference: str, hypothesis: str, expected: ErrorCounts) -> None:
    assert count_errors(reference, hypothesis) == expected


@given(st.lists(COUNTS))
def test_the_counts_of_a_set_are_sums_and_its_wer_is_divided_once(counts: list[ErrorCounts]) -> None:
    whole = total(counts)
    for field in ("substitutions", "insertions", "deletions", "reference_words", "utterances", "errors"):
        assert getattr(whole, field) == sum(getattr(one, field) for one in counts)
    if whole.reference_words:
        assert whole.wer == sum(one.errors for one in counts) / sum(one.reference_words for one in counts)


def test_what_ranks_exchange_makes_the_counts_again() -> None:
    counts = ErrorCounts(substitutions=1, insertions=2, deletions=3, reference_words=40, utterances=5)
    assert ErrorCounts(*counts.as_tuple()) == counts


def test_wer_is_a_fraction_that_may_exceed_1_and_is_infinite_for_words_out_of_nothing() -> None:
    assert count_errors("a b c d", "a x c d").wer == 0.25
    assert count_errors("a", "x y z").wer == 3.0
    assert count_errors("", "x").wer == float("inf")
    assert count_errors("", "").wer == 0.0


def test_results_hold_no_infinity_which_json_does_not_know() -> None:
    assert count_errors("", "x").as_dict()["wer"] is None
    assert count_errors("", "").as_dict()["wer"] == 0.0
    assert count_errors("a b", "a c").as_dict() == {
        "wer": 0.5,
        "substitutions": 1,
        "insertions": 0,
        "deletions": 0,
        "reference_words": 2,
        "utterances": 1,
    }
