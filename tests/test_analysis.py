"""The figures of an evaluation equal the results of plain loops over its utterances."""

import json
import math
from bisect import bisect_right
from collections import Counter
from itertools import pairwise
from typing import Any

import jiwer
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asr.core.evaluation.analysis import (
    GROUPINGS,
    NO_SPEAKER,
    SECONDS,
    WORDS_A_SECOND,
    breakdown,
    choose_edges,
    figures,
)
from asr.core.evaluation.bootstrap import MIN_UNITS
from asr.core.evaluation.utterances import Scored
from tests.scoring import scored, simulated


@pytest.fixture(scope="module")
def rows() -> list[Scored]:
    return simulated(300, seed=1)


@pytest.fixture(scope="module")
def report(rows: list[Scored]) -> dict[str, Any]:
    return figures(rows)


def test_figures_of_any_utterances_can_be_written_as_json() -> None:
    nothing = scored("", "")
    for rows in ([], [nothing], [scored("", "a b")], [scored("a", "")], [scored("a", "b")] * 7, simulated(30, seed=1)):
        again = json.loads(json.dumps(figures(rows), allow_nan=False))
        assert again == figures(rows)
        assert again["utterances"] == len(rows)


def test_rates_are_all_errors_divided_by_all_words(rows: list[Scored], report: dict[str, Any]) -> None:
    references, hypotheses = [row.reference for row in rows], [row.transcript.text for row in rows]
    assert report["words"]["rate"] == pytest.approx(jiwer.wer(references, hypotheses), abs=1e-12)
    assert report["characters"]["rate"] == pytest.approx(jiwer.cer(references, hypotheses), abs=1e-12)
    by_jiwer = jiwer.process_words(references, hypotheses)
    for kind in ("substitutions", "insertions", "deletions"):
        assert report["words"][kind] == getattr(by_jiwer, kind)
    assert report["words"]["reference_length"] == 300 * 20
    assert report["raw_words"]["rate"] is None, "these texts have neither case nor punctuation"
    assert report["wrong_utterances"] == sum(
        reference != hypothesis for reference, hypothesis in zip(references, hypotheses, strict=True)
    )
    assert report["speakers"] == 20
    assert report["audio_seconds"] == pytest.approx(sum(row.utterance.duration for row in rows))
    for kind in ("words", "characters"):
        for interval in ("interval", "speaker_interval"):
            low, high = report[kind][interval]
            assert low < report[kind]["rate"] < high < low + 0.05


def test_errors_in_texts_as_written_are_counted_separately() -> None:
    report = figures([scored("the cat sat", "the cat sat", text="The cat sat.")])
    assert (report["words"]["rate"], report["raw_words"]["rate"]) == (0.0, 2 / 3)
    for text in ("THE CAT'S SAT", "the cat's well-known", "die katze saß", "猫が座った"):
        shouted = figures([scored(text.lower(), text.lower(), text=text)])["raw_words"]
        assert (shouted["rate"], shouted["interval"]) == (None, None), "without case and punctuation"
    for text in ("the cat sat.", "猫が座った。"):
        assert figures([scored(text[:-1], text[:-1], text=text)])["raw_words"]["rate"] > 0


@pytest.mark.parametrize("known", [0, 20, MIN_UNITS - 1])
def test_an_interval_over_speakers_exists_only_if_every_utterance_has_a_speaker_and_there_are_enough_speakers(
    known: int,
) -> None:
    rows = [
        scored("a b", "a c", name=str(number), speaker=str(number) if number < known else None) for number in range(40)
    ]
    assert figures(rows)["words"]["speaker_interval"] is None
    assert figures(rows)["speakers"] == known
    few = [scored("a b", "a c", name=str(number), speaker=str(number % (MIN_UNITS - 1))) for number in range(40)]
    assert figures(few)["words"]["speaker_interval"] is None
    enough = [scored("a b", "a c", name=str(number), speaker=str(number % MIN_UNITS)) for number in range(40)]
    assert figures(enough)["words"]["speaker_interval"] == [0.5, 0.5]


# ---- breakdowns


@pytest.mark.parametrize("kind", ["subset", "speaker", "duration", "speaking_rate"])
def test_rows_of_a_breakdown_contain_every_utterance_once(
    kind: str, rows: list[Scored], report: dict[str, Any]
) -> None:
    table = report["by"][kind]
    assert sum(row["utterances"] for row in table) == len(rows)
    for key in ("errors", "reference_length"):
        assert sum(row[key] for row in table) == report["words"][key]
    assert len({row["name"] for row in table}) == len(table)
    for row in table:
        assert row["rate"] == row["errors"] / row["reference_length"]
        assert row["interval"][0] <= row["rate"] <= row["interval"][1]


@pytest.mark.parametrize("kind", GROUPINGS)
def test_rows_of_several_systems_equal_the_rows_of_each_system_alone(kind: str) -> None:
    systems = [simulated(300, seed=seed) for seed in (1, 2, 3)]
    together = breakdown(systems, kind)
    assert together == [figures(system)["by"][kind] for system in systems]
    assert together[0] != together[1]


def test_without_utterances_no_system_has_a_row() -> None:
    assert breakdown([[], []], "duration") == [[], []]


def test_speakers_are_sorted_by_name_and_unknown_speakers_come_last() -> None:
    names = ["b", None, "a", "b", None]
    rows = [scored("a b", "a", name=str(number), speaker=name) for number, name in enumerate(names)]
    table = figures(rows)["by"]["speaker"]
    assert [(row["name"], row["utterances"]) for row in table] == [("a", 1), ("b", 2), (NO_SPEAKER, 2)]
    assert figures([scored("a", "a")])["by"]["speaker"] == []


def test_subsets_are_in_the_order_given() -> None:
    rows = [scored("a", "b", subset=subset, name=str(number)) for number, subset in enumerate("zazb")]
    assert [(row["name"], row["errors"]) for row in figures(rows)["by"]["subset"]] == [("z", 2), ("a", 1), ("b", 1)]


def test_bins_of_durations_have_edges_at_round_seconds(rows: list[Scored], report: dict[str, Any]) -> None:
    for row in report["by"]["duration"]:
        low, _, high, unit = row["name"].split()
        assert unit == "s"
        inside = [scored_row for scored_row in rows if float(low) <= scored_row.utterance.duration < float(high)]
        assert row["utterances"] == len(inside)
        assert row["errors"] == sum(scored_row.counts.errors for scored_row in inside)


def test_speaking_rate_is_reference_words_per_second() -> None:
    slow = [scored("a b", "a", name=f"slow {number}", duration=4.0) for number in range(10)]
    fast = [scored("a b c d e f", "a b", name=f"fast {number}", duration=2.0) for number in range(10)]
    table = figures(slow + fast)["by"]["speaking_rate"]
    assert [(row["name"], row["errors"]) for row in table] == [("0.5 to 1 words/s", 10), ("1 to 3.25 words/s", 40)]


@given(
    numbers=st.lists(
        st.one_of(st.floats(0, 1e9), st.floats(0.5, 20), st.sampled_from([2.0, 3.0, math.inf])), min_size=1
    ),
    edges=st.sampled_from([SECONDS, WORDS_A_SECOND]),
)
@example([0.0] * 5 + [1.0] * 5 + [math.inf] * 5, SECONDS)
def test_there_are_few_bins_and_none_is_nearly_empty(numbers: list[float], edges: tuple[float, ...]) -> None:
    chosen = choose_edges(numbers, edges)
    assert set(chosen) <= set(edges)
    assert chosen == sorted(set(chosen))
    assert chosen[0] <= min(numbers)
    assert max(numbers) < chosen[-1] or chosen[-1] == math.inf
    bins = Counter(bisect_right(chosen[1:-1], number) for number in numbers)
    assert len(bins) == len(chosen) - 1 <= 8, "no bin is empty"
    assert len(bins) == 1 or min(bins.values()) >= max(5, len(numbers) / 8)


def test_recordings_beyond_the_outermost_edges_have_a_bin() -> None:
    rows = [scored("a", "a", name=str(number), duration=1e8) for number in range(6)]
    rows += [scored("a b c", "a", name=f"short {number}", duration=5e-324) for number in range(6)]
    table = figures(rows)["by"]
    assert [row["name"] for row in table["duration"]] == ["0 to 0.5 s", "0.5 s and more"]
    assert sum(row["utterances"] for row in table["speaking_rate"]) == 12


# ---- confusions, calibration, histograms


def test_confusions_are_counted_and_listed_by_frequency() -> None:
    rows = [
        scored("the zoo sat", "the shoe sat", name="1"),
        scored("a zoo is", "a shoe is oh", name="2"),
        scored("the dog", "dog", name="3"),
        scored("dog the", "fog", name="4"),
        scored("a", "a oh", name="5"),
    ]
    assert figures(rows)["confusions"] == {
        "substitutions": [
            {"reference": "zoo", "hypothesis": "shoe", "count": 2},
            {"reference": "dog", "hypothesis": "fog", "count": 1},
        ],
        "insertions": [{"word": "oh", "count": 2}],
        "deletions": [{"word": "the", "count": 2}],
    }


def test_at_most_50_confusions_of_a_kind_are_listed_and_equally_frequent_ones_are_sorted_by_name() -> None:
    rows = [scored(f"w{number}", f"v{number}", name=str(number)) for number in reversed(range(100, 180))]
    listed = figures(rows)["confusions"]["substitutions"]
    assert [confusion["reference"] for confusion in listed] == [f"w{number}" for number in range(100, 150)]


def test_calibration_covers_every_recognised_word(rows: list[Scored], report: dict[str, Any]) -> None:
    words: list[tuple[float, bool]] = []
    for row in rows:
        alignment = jiwer.process_words(row.reference, row.transcript.text).alignments[0]
        right = {
            index
            for chunk in alignment
            if chunk.type == "equal"
            for index in range(chunk.hyp_start_idx, chunk.hyp_end_idx)
        }
        words += [(word.confidence, index in right) for index, word in enumerate(row.transcript.words)]
    calibration = report["calibration"]
    assert calibration["words"] == len(words)
    assert calibration["accuracy"] == pytest.approx(sum(right for _, right in words) / len(words))
    assert calibration["mean_confidence"] == pytest.approx(sum(confidence for confidence, _ in words) / len(words))
    pairs = [(hit > miss) + (hit == miss) / 2 for hit, yes in words if yes for miss, no in words if not no]
    assert calibration["auc"] == pytest.approx(sum(pairs) / len(pairs))
    gap = 0.0
    for confidence_bin in calibration["bins"]:
        inside = [right for confidence, right in words if confidence_bin["from"] <= confidence <= confidence_bin["to"]]
        assert (confidence_bin["words"], confidence_bin["accuracy"]) == (
            len(inside),
            pytest.approx(sum(inside) / len(inside)),
        )
        gap += abs(confidence_bin["confidence"] - confidence_bin["accuracy"]) * len(inside) / len(words)
    assert calibration["ece"] == pytest.approx(gap)
    for confidence_bin in report["distribution"]["confidence"]:
        inside = [
            right
            for confidence, right in words
            if confidence_bin["from"] <= confidence < confidence_bin["to"] or confidence == confidence_bin["to"] == 1
        ]
        assert (confidence_bin["right"], confidence_bin["wrong"]) == (sum(inside), len(inside) - sum(inside))


def test_without_words_there_is_no_calibration_and_without_wrong_words_no_auc() -> None:
    assert figures([scored("a", "")])["calibration"] is None
    assert figures([scored("a", "a")])["calibration"]["auc"] is None


def test_a_word_with_confidence_1_is_in_the_last_bin() -> None:
    histogram = figures([scored("a b", "a c", confidences=[1.0, 0.0])])["distribution"]["confidence"]
    assert (histogram[-1]["right"], histogram[0]["wrong"]) == (1, 1)
    assert sum(histogram_bin["right"] + histogram_bin["wrong"] for histogram_bin in histogram) == 2


def test_utterances_are_counted_by_wer_with_separate_bins_for_0_and_for_more_than_100_percent() -> None:
    ten = "a b c d e f g h i j"
    hypotheses = [ten, "x" + ten[1:], "x x" + ten[3:], "", f"{ten} {ten}", f"{ten} {ten} {ten}"]
    rows = [scored(ten, hypothesis, name=str(number)) for number, hypothesis in enumerate(hypotheses)]
    rows += [scored("", "oh", name="out of nothing"), scored("", "", name="silence")]
    histogram = figures(rows)["distribution"]["wer"]
    assert [histogram_bin["utterances"] for histogram_bin in histogram] == [2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 2, 2]
    assert (histogram[0]["from"], histogram[0]["to"], histogram[-1]["to"]) == (0.0, 0.0, None)
    assert all(lower["to"] == upper["from"] for lower, upper in pairwise(histogram))
