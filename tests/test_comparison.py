"""Comparison of two models: its figures equal those of plain loops; output and errors of the command."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.apps.report.side_by_side import side_by_side
from asr.base.text.table import WIDTH
from asr.base.text.word_errors import align_words
from asr.compare import main
from asr.core.evaluation.comparison import compare, is_shown, num_utterances_to_show, verdict
from asr.core.evaluation.utterances import Scored
from asr.errors import InputError
from tests.conftest import ROOT
from tests.forked import run_module
from tests.refusals import check_ended, mentions, refused
from tests.scoring import scored, simulated, write_scored


def every_20th_error_corrected(rows: Sequence[Scored]) -> list[Scored]:
    """Undo the 20th error, the 40th, and so on, counted over all utterances."""
    utterances, count = [], 0
    for row in rows:
        hypothesis = row.transcript.text
        for _ in range(row.counts.errors):
            count += 1
            if count % 20 == 0:
                hypothesis = one_error_less(row.reference, hypothesis)
        utterance = row.utterance
        utterances.append(
            scored(row.reference, hypothesis, name=utterance.id, speaker=utterance.speaker, duration=utterance.duration)
        )
    return utterances


def one_error_less(reference: str, hypothesis: str) -> str:
    """Undo the first error of an alignment."""
    words: list[str] = []
    undone = False
    for edit in align_words(reference, hypothesis):
        if edit.kind != "equal" and not undone:
            undone = True
            words += [edit.reference] if edit.reference else []
        elif edit.hypothesis:
            words.append(edit.hypothesis)
    return " ".join(words)


@pytest.fixture(scope="module")
def a() -> list[Scored]:
    return simulated(2600, seed=1)


@pytest.fixture(scope="module")
def b(a: list[Scored]) -> list[Scored]:
    return every_20th_error_corrected(a)


def test_correcting_every_20th_error_in_52000_words_is_significant(a: list[Scored], b: list[Scored]) -> None:
    """test_bootstrap.py simulates this 200 times, and the null hypothesis 500 times."""
    comparison = compare(a, b)
    assert comparison["a"]["reference_length"] == 52_000
    assert comparison["a"]["rate"] == pytest.approx(0.1, abs=0.02)
    assert comparison["a"]["errors"] - comparison["b"]["errors"] == comparison["a"]["errors"] // 20
    assert comparison["difference"]["p_value"] < 0.05
    assert comparison["difference"]["speaker_p_value"] < 0.05
    assert comparison["difference"]["interval"][1] < 0


def test_most_tests_of_the_size_that_would_show_a_difference_show_it() -> None:
    def drawn(count: int, seed: int) -> dict[str, Any]:
        return compare(*(simulated(count, seed, error_rate=rate) for rate in (0.2, 0.15)))

    number = num_utterances_to_show(drawn(1000, seed=1))
    assert 20 < number < 1000
    shown = [is_shown(drawn(number, seed), "b") for seed in range(10, 40)]
    assert 0.6 < sum(shown) / len(shown) < 1
    assert not any(is_shown(drawn(number, seed), "a") for seed in range(10, 40))
    same = simulated(50, seed=0)
    assert num_utterances_to_show(compare(same, same)) == 0


def test_exchanging_models_in_random_utterances_is_not_significant(a: list[Scored], b: list[Scored]) -> None:
    draw = random.Random(0)
    exchanged = [pair if draw.random() < 0.5 else pair[::-1] for pair in zip(a, b, strict=True)]
    comparison = compare([first for first, _ in exchanged], [second for _, second in exchanged])
    assert comparison["difference"]["p_value"] > 0.05


def test_figures_equal_those_of_plain_loops(a: list[Scored], b: list[Scored]) -> None:
    comparison = compare(a, list(reversed(b)))  # the order does not matter
    pairs = [(first.counts.errors, second.counts.errors) for first, second in zip(a, b, strict=True)]
    assert comparison["utterances"] == 2600
    assert comparison["utterance_wins"] == {
        "a": sum(errors_a < errors_b for errors_a, errors_b in pairs),
        "b": sum(errors_a > errors_b for errors_a, errors_b in pairs),
        "tie": sum(errors_a == errors_b for errors_a, errors_b in pairs),
    }
    words = sum(row.counts.reference_length for row in a)
    assert comparison["difference"]["rate"] == pytest.approx(
        sum(errors_b - errors_a for errors_a, errors_b in pairs) / words
    )
    speakers: dict[str, list[int]] = {}
    for row, (errors_a, errors_b) in zip(a, pairs, strict=True):
        sums = speakers.setdefault(str(row.utterance.speaker), [0, 0, 0, 0])
        for place, value in enumerate((errors_a, errors_b, row.counts.reference_length, 1)):
            sums[place] += value
    keys = ("a_errors", "b_errors", "reference_length", "utterances")
    assert comparison["speakers"] == [
        {"name": name, **dict(zip(keys, sums, strict=True))} for name, sums in sorted(speakers.items())
    ]
    assert comparison["speaker_wins"]["b"] == sum(errors_a > errors_b for errors_a, errors_b, _, _ in speakers.values())
    assert sum(comparison["speaker_wins"].values()) == 20
    changes = {
        row.utterance.id: errors_b - errors_a
        for row, (errors_a, errors_b) in zip(a, pairs, strict=True)
        if errors_a != errors_b
    }
    assert {row["id"]: row["change"] for row in comparison["changed"]} == changes
    sizes = [abs(row["change"]) for row in comparison["changed"]]
    assert sizes == sorted(sizes, reverse=True)


def test_exchanging_the_two_models_negates_the_difference(a: list[Scored], b: list[Scored]) -> None:
    there, back = compare(a[:200], b[:200]), compare(b[:200], a[:200])
    assert there["difference"]["rate"] == -back["difference"]["rate"]
    assert there["difference"]["interval"] == pytest.approx([-end for end in reversed(back["difference"]["interval"])])
    assert there["difference"]["p_value"] == back["difference"]["p_value"]


def test_a_comparison_of_any_utterances_can_be_written_as_json() -> None:
    silent = [scored("", "a", name=str(number)) for number in range(9)]
    quiet = [scored("", "", name=str(number)) for number in range(9)]
    for first, second in (
        (silent, quiet),
        (silent[:1], quiet[:1]),
        ([scored("a", "b")], [scored("a", "a", speaker="s")]),
    ):
        comparison = compare(first, second)
        assert json.loads(json.dumps(comparison, allow_nan=False)) == comparison
        assert comparison["difference"]["p_value"] is None, "no words, or too few utterances"
        assert comparison["speaker_wins"] is None
        assert comparison["speakers"] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[1:], "'utterance-0' ... 'test'"),
        (
            lambda rows: [scored("a", "a", name="new"), *rows],
            "'new' ... 'test'",
        ),
        (
            lambda rows: [scored(row.reference, "a", name=row.utterance.id, subset="other") for row in rows],
            "'utterance-0' ... 'test'",
        ),
        (
            lambda rows: [scored(row.reference.upper(), "a", name=row.utterance.id) for row in rows],
            "same references ... 9 of 9 differ",
        ),
    ],
)
def test_utterances_that_cannot_be_compared_are_counted_and_named(change: object, message: str) -> None:
    rows = simulated(9, seed=1)
    with refused(InputError, message) as raised:
        compare(rows, change(rows))  # type: ignore[operator]
    assert len(str(raised.value)) < 500


def test_the_largest_change_comes_first_whether_better_or_worse() -> None:
    rows_a = [
        scored("a b c", hypothesis, name=name) for name, hypothesis in (("1", "a b x"), ("2", "a b c"), ("3", "x"))
    ]
    rows_b = [
        scored("a b c", hypothesis, name=name) for name, hypothesis in (("1", "a b c"), ("2", "x x c"), ("3", "a b c"))
    ]
    assert [(row["id"], row["change"]) for row in compare(rows_a, rows_b)["changed"]] == [
        ("3", -3),
        ("2", 2),
        ("1", -1),
    ]


def test_equal_ids_in_different_subsets_are_different_utterances() -> None:
    rows_a = [scored("a", "a", subset="x"), scored("b", "c", subset="y")]
    rows_b = [scored("b", "b", subset="y"), scored("a", "a", subset="x")]
    assert compare(rows_a, rows_b)["changed"] == [{"id": "1", "subset": "y", "change": -1}]


# ---- side by side


def test_hypotheses_are_aligned_below_the_reference_with_their_errors_marked() -> None:
    assert side_by_side("the cat sat on it", "oh the hat sat it", "the cat sat quietly on it now") == [
        "ref      the cat   sat           on  it",
        "  A +oh+ the *hat* sat           --- it",
        "  B      the cat   sat +quietly+ on  it +now+",
    ]


@given(
    texts=st.lists(
        st.lists(st.sampled_from(["a", "bb", "ccc", "\u4f60\u597d", "e\u0301", "x" * 30, "x" * 150]), max_size=30),
        min_size=3,
        max_size=3,
    )
)
def test_every_word_is_in_its_column_and_lines_are_no_wider_than_necessary(texts: list[list[str]]) -> None:
    reference, hypothesis_a, hypothesis_b = (" ".join(words) for words in texts)
    lines = side_by_side(reference, hypothesis_a, hypothesis_b)
    assert len(lines) % 3 == 0
    for place, (label, words) in enumerate(zip(("ref", "A", "B"), texts, strict=True)):
        shown = [line.split() for line in lines[place::3]]
        assert all(cells[0] == label for cells in shown)
        shown_words = [cell.strip("*+") for cells in shown for cell in cells[1:] if cell != "---"]
        assert shown_words == words
    assert max(len(line) for line in lines) <= max(WIDTH, 2 + 6 + 150)


# ---- the command


run = partial(run_module, "asr.compare")


def test_the_command_prints_the_differences_and_writes_the_figures(
    a: list[Scored], b: list[Scored], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [write_scored(tmp_path / f"{name}.jsonl", rows[:400]) for name, rows in (("a", a), ("b", b))]
    assert main([*map(str, paths), "--json", str(tmp_path / "figures.json"), "--top", "2"]) == 0
    comparison = compare(a[:400], b[:400])
    assert json.loads((tmp_path / "figures.json").read_text()) == comparison
    output = capsys.readouterr().out
    difference = comparison["difference"]
    relative = 100 * difference["rate"] / comparison["a"]["rate"]
    assert (
        f"B minus A, 400 utterances, 8000 words: {100 * difference['rate']:+.2f} points ({relative:+.1f} % " in output
    )
    low, high = difference["interval"]
    cells = {line.split()[0]: line.split() for line in output.splitlines() if line.strip()}
    assert cells["utterances"][1:6] == [f"{100 * low:+.2f}", "to", f"{100 * high:+.2f}", "<", "0.001"]
    wins = comparison["speaker_wins"]
    assert cells["speakers"][-3:] == [str(wins[key]) for key in ("a", "b", "tie")]
    assert output.count("\nref ") >= 2
    assert f"\n{comparison['changed'][0]['id']} (test), -1: " in output
    assert "that changed most" in output


def test_the_output_states_that_nothing_changed_and_that_speakers_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_scored(tmp_path / "a.jsonl", [scored("a b", "a c"), scored("", "", name="2")])
    assert main([str(path), str(path)]) == 0
    output = capsys.readouterr().out
    assert "B minus A, 2 utterances, 2 words: +0.00 points (+0.0 % relative)" in output
    lines = [line.split() for line in output.splitlines()]
    assert ["utterances", "too", "few", "to", "say", "-", "0", "0", "2"] in lines
    assert ["speakers", "not", "all", "are", "known", "-", "-", "-", "-"] in lines
    assert "changed" not in output


def test_without_words_in_the_references_there_is_no_error_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_scored(tmp_path / "a.jsonl", [scored("", "a")])
    assert main([str(path), str(path)]) == 0
    assert "no rate, because the references have no words" in capsys.readouterr().out


GOOD = "".join(json.dumps(row.as_dict()) + "\n" for row in simulated(5, seed=1))
FEWER = "".join(line + "\n" for line in GOOD.splitlines()[1:])
BAD: dict[str, tuple[str | bytes, str]] = {
    "not there": ("", "no such file"),
    "an empty folder": ("", "bad.jsonl ... one NAME.utterances.jsonl ... none ... --output-dir"),
    "empty": ("", "is empty"),
    "not JSON": ("hello", "line ... JSON"),
    "a manifest": ('{"audio_filepath": "a.wav", "duration": 1.0, "text": "a"}', "bad.jsonl:1 ... missing id, subset"),
    "a summary": (json.dumps({"wer": 0.5}, indent=2), "line ... JSON"),
    "duration NaN": (GOOD.replace('"duration": ', '"duration": NaN, "x": ', 1), "duration; got nan"),
    "binary": (b"RIFF\x24\x00\x00\x00WAVEfmt ", "not text"),
    "not UTF-8": (b"\xff\xfe\x80 not text", "line ... JSON"),
    "cut off": (GOOD[:-20], "line ... JSON"),
    "a huge line": ("[" + "1," * 3_000_000, "line ... JSON"),
    "twice": (GOOD + GOOD, "bad.jsonl:6 ... ids ... 'utterance-0'"),
    "other utterances": (FEWER, "both evaluations ... same utterances"),
    "other texts": (
        GOOD.replace('"reference": "', '"reference": "x '),
        "both evaluations ... same references",
    ),
    "Unicode": (GOOD.replace("utterance-3", "\u202e\u05e9\u200b"), "1 of 5 ... 'utterance-3'"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_reported_in_one_line_with_status_1(kind: str, tmp_path: Path) -> None:
    content, message = BAD[kind]
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text(GOOD)
    if kind == "an empty folder":
        bad.mkdir()
    elif kind != "not there":
        bad.write_bytes(content if isinstance(content, bytes) else content.encode())
    ended = run(good, bad)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith("error: ")
    assert mentions(ended.stderr, message)
    assert ended.stderr.count("\n") == 1
    assert len(ended.stderr) < 600
    assert "Traceback" not in ended.stderr


def test_a_folder_with_one_file_of_utterances_is_compared_as_that_file(
    a: list[Scored], b: list[Scored], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / "greedy", tmp_path / "beam"]
    for folder, rows in zip(folders, (a, b), strict=True):
        folder.mkdir()
        (folder / "test.wer.json").write_text("{}")
        write_scored(folder / "test.utterances.jsonl", rows[:40])
    files = [folder / "test.utterances.jsonl" for folder in folders]
    assert main([*map(str, files)]) == 0
    output = capsys.readouterr().out
    assert main([*map(str, folders)]) == 0
    assert capsys.readouterr().out == output
    assert main([str(folders[0]), str(files[1])]) == 0
    assert capsys.readouterr().out == output


def test_a_folder_with_several_files_of_utterances_is_refused_with_their_names(tmp_path: Path) -> None:
    for name in ("test", "dev"):
        write_scored(tmp_path / f"{name}.utterances.jsonl", simulated(5, seed=1))
    ended = run(tmp_path / "test.utterances.jsonl", tmp_path)
    several = "has 2: dev.utterances.jsonl, test.utterances.jsonl"
    check_ended(ended, f"{tmp_path} ... NAME.utterances.jsonl ... {several}")


def test_figures_do_not_replace_the_file_of_utterances_in_a_folder(tmp_path: Path) -> None:
    path = write_scored(tmp_path / "test.utterances.jsonl", simulated(5, seed=1))
    content = path.read_text()
    for option in ("--json", "--report"):
        check_ended(run(tmp_path, tmp_path, option, path), f"{option} ... {path}")
    assert path.read_text() == content


def test_a_file_that_cannot_be_read_is_reported_in_one_line() -> None:
    ended = run("/proc/self/mem", "/proc/self/mem")  # reading fails even for root, as on a faulty disk
    check_ended(ended, "/proc/self/mem ... Input/output error")


def test_invalid_options_are_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(GOOD)
    check_ended(run(path, path, "--top", "-1"), "--top; got -1")
    unwritable = run(path, path, "--json", path / "x.json")
    assert mentions(unwritable.stderr, "--json ... writable file")
    assert unwritable.stderr.count("\n") == 1
    assert run(path, path, "--json", tmp_path).returncode == 1
    full = run(path, path, "--json", "/dev/full/x")
    assert (full.returncode, full.stderr.count("\n")) == (1, 1)


def test_names_with_terminal_control_characters_are_escaped(tmp_path: Path) -> None:
    names = ["\x1b[31mred", "\u202egnorw", "two\nlines", "\udcff"]
    rows_a = [scored("a b", "a c", name=name, subset="\x1b[2J") for name in names]
    rows_b = [scored("a b", "a b", name=name, subset="\x1b[2J") for name in names]
    paths = [write_scored(tmp_path / f"{name}.jsonl", rows) for name, rows in (("a", rows_a), ("b", rows_b))]
    ended = run(*paths)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\\x1b[31mred (\\x1b[2J), -1: 1 error in A, 0 in B" in ended.stdout
    assert not {"\x1b", "\u202e", "\udcff"} & set(ended.stdout)


# ---- the verdict and the names of the models


def verdict_of(a: Sequence[Scored], b: Sequence[Scored]) -> str:
    return verdict(compare(a, b))


def test_the_verdict_names_the_better_model_only_if_the_difference_is_significant(
    a: list[Scored], b: list[Scored]
) -> None:
    fewer = sum(row.counts.errors for row in a) - sum(row.counts.errors for row in b)
    assert verdict_of(a, b).startswith(f"B is better: it makes {fewer:,} fewer errors, and the 95 % interval over ")
    assert verdict_of(b, a).startswith(f"A is better: it makes {fewer:,} fewer errors, and the 95 % interval over ")
    assert verdict_of(a, b).endswith(" points, excludes 0.")
    assert verdict_of(a, a) == "No verdict: in each utterance both models have the same number of errors."
    few = [*b[:20], *a[20:40]], [*a[:20], *b[20:40]]
    assert re.fullmatch(
        r"No verdict: (B makes \d+ (fewer|more) errors?|errors are equal), but .* includes 0; .*", verdict_of(*few)
    )
    assert verdict_of(a[:3], b[:3]).startswith(
        ("No verdict: there are too few utterances", "No verdict: in each utterance")
    )
    silent = [scored("", "word", name="a")], [scored("", "", name="a")]
    assert verdict_of(*silent) == "No verdict: the references have no words."


def test_the_verdict_is_based_on_speakers_if_they_are_known() -> None:
    """B is much better for one speaker and worse for the others, so it may be worse for new speakers."""

    def results(errors: Sequence[int]) -> list[Scored]:
        rows = []
        for speaker, count in enumerate(errors):
            for number in range(100):
                hypothesis = " ".join(["wrong"] * count + ["word"] * (10 - count))
                rows.append(
                    scored(" ".join(["word"] * 10), hypothesis, name=f"{speaker}-{number}", speaker=str(speaker))
                )
        return rows

    comparison = compare(results([9, 2, 2, 2, 2, 2]), results([0, 3, 3, 2, 3, 2]))
    assert comparison["difference"]["interval"][1] < 0, "over utterances B is better"
    assert verdict(comparison).startswith("No verdict: B makes 600 fewer errors, but the 95 % interval over speakers, ")


def test_models_are_named_after_their_files_but_not_after_pipes(
    a: list[Scored], b: list[Scored], tmp_path: Path
) -> None:
    paths = [write_scored(tmp_path / f"{name}.jsonl", rows[:40]) for name, rows in (("a", a), ("b", b))]
    shown = run(*paths, "--names", "baseline", "with augmentation", "--report", tmp_path / "new" / "page.html").stdout
    assert "A baseline" in shown
    assert "B with augmentation" in shown
    page = (tmp_path / "new" / "page.html").read_text()
    assert "<dd>with augmentation</dd>" in page
    assert verdict_of(a[:40], b[:40]) in shown
    assert verdict_of(a[:40], b[:40]) in page
    command = f'"{sys.executable}" -m asr.compare <(cat "{paths[0]}") <(cat "{paths[1]}")'
    piped = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "/dev/fd" not in piped
    assert "A (from a pipe)" in piped
