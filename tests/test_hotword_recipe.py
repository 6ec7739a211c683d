"""The recipe that measures hotwords: which words are rare, which lists are made of them, and which errors count."""

from pathlib import Path

import pytest

from asr.core.data.manifest import Utterance, read_manifest
from asr.errors import InputError
from benchmarks.hotwords import Counts, count
from benchmarks.hotwords import main as measure
from recipes.hotwords.lists import main as make_lists
from recipes.hotwords.lists import rare_words
from tests.refusals import refused

TEXT = ["the the the the ship ship ship sails", "kubernetes grafana ant", "zanzibar valletta"]
SAID = {"first": "the ship kubernetes", "second": "zanzibar sails the ant", "third": "the ship"}


def utterances() -> list[Utterance]:
    return [Utterance(f"{name}.wav", 1.0, text, name) for name, text in SAID.items()]


def test_rare_words_are_long_and_not_among_the_most_frequent_words_of_the_text() -> None:
    words = rare_words(utterances(), TEXT, str, num_frequent=2, excluded=["sails"])
    assert words.of_reference == {"first": ["kubernetes"], "second": ["zanzibar"], "third": []}
    assert sorted(words.others) == ["grafana", "valletta"]


def test_lists_have_the_spoken_rare_words_and_others_that_no_reference_has() -> None:
    words = rare_words(utterances(), TEXT, str, num_frequent=2, excluded=["sails"])
    assert words.of_set(3)[:2] == ["kubernetes", "zanzibar"]
    assert set(words.of_set(4)) == {"kubernetes", "zanzibar", "grafana", "valletta"}
    assert words.of_utterance("second", 2)[0] == "zanzibar"
    assert set(words.of_utterance("second", 3)) == {"zanzibar", "grafana", "valletta"}
    assert set(words.absent(2)) == {"grafana", "valletta"}
    assert words.of_utterance("first", 2) == words.of_utterance("first", 2), "the choice is fixed"
    with refused(InputError, "--words ... 4 ... 5"):
        words.of_set(5)


@pytest.mark.parametrize(
    ("hypothesis", "expected"),
    [
        ("the ship kubernetes", Counts(0, 0, 0)),
        ("the ship grafana", Counts(1, 0, 1)),  # a rare word is wrong, and another word of the list takes its place
        ("the ship", Counts(1, 0, 0)),
        ("the kubernetes kubernetes", Counts(0, 1, 1)),  # a common word is wrong
        ("the ship kubernetes kubernetes", Counts(1, 0, 1)),  # an insertion counts by the inserted word
        ("the ship kubernetes grafana", Counts(0, 1, 1)),  # no reference has this word
        ("a the ship kubernetes", Counts(0, 1, 0)),
    ],
)
def test_errors_are_divided_between_rare_words_and_others(hypothesis: str, expected: Counts) -> None:
    listed = {"kubernetes", "zanzibar", "grafana"}
    assert count(SAID["first"], hypothesis, {"kubernetes", "zanzibar"}, listed) == expected


def test_the_commands_write_lists_and_print_a_row_for_each_setting(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(["fade"] * 3 + ["bead", "cafe", "dead", "face", "feed"]))
    given = [str(fluent / "test.jsonl"), "--text", str(text), "--frequent", "1"]
    assert make_lists([*given, "--words", "200", "--output-dir", str(tmp_path / "lists")]) == 1
    assert "--words" in capsys.readouterr().err
    assert make_lists([*given, "--words", "5", "--output-dir", str(tmp_path / "other")]) == 0
    assert "fade" not in (tmp_path / "other" / "test.hotwords.txt").read_text().split()
    listed = read_manifest(tmp_path / "other" / "test.jsonl", ["hotwords"])
    assert all(len(each.labels["hotwords"].splitlines()) >= 5 for each in listed)
    capsys.readouterr()
    options = ["--words", "5", "--hypotheses", "2", "4", "--scores", "1", "300", "--lists", "utterance", "absent"]
    assert measure([str(fluent / "run"), *given, *options, "--output", str(tmp_path / "counts.json")]) == 0
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    kinds = [row[0].strip() for row in rows[1:]]
    assert kinds == ["none"] * 3 + ["utterance"] * 4 + ["absent"] * 4
    alarms = [float(row[8]) for row in rows[-4:]]
    assert max(alarms[1::2]) > 0.0 == max(alarms[::2]), "a large bonus makes words that nobody said"
