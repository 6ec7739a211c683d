"""The table of training runs: figures equal those in the runs' files; significance equals that of asr.compare."""

import fcntl
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from asr.apps.runs.changed_settings import differing, setting_columns
from asr.apps.runs.ranking import holm
from asr.base.text.numbers import interval, percent, points, probability
from asr.base.text.table import latex, markdown
from asr.core.evaluation.comparison import compare
from asr.core.evaluation.counts import count_utterances
from asr.core.evaluation.result import Evaluation
from asr.core.evaluation.utterances import Scored
from asr.core.run.events import Bundled, EndedEarly, Event, EventsFile, Progress, Started, Validated, Warned
from asr.errors import InputError
from asr.runs import main
from tests.conftest import ROOT, resolved
from tests.refusals import refused
from tests.scoring import scored, simulated

START = Started(
    0,
    "Conformer",
    {"parameters": 2_628_237, "tokens": 29},
    {"utterances": 712, "hours": 0.99},
    {"utterances": 9},
    "",
    "",
    "",
    "",
)
FINISHED = (START, Progress(100, 1, 100, 100, 100), Bundled())
TITLES = ["run", "state", "valid WER %", "test WER %", "test to best", "test corrected p", "time", "parameters"]


def make_run(
    run_dir: Path,
    *overrides: str,
    events: Sequence[Event] = FINISHED,
    results: Sequence[Scored] | None = None,
) -> Path:
    """Write a run folder; `results` are the scored utterances of the manifest `test`."""
    run_dir.mkdir(parents=True)
    settings = resolved(*overrides, f"run_dir={run_dir}")
    (run_dir / "config.yaml").write_text(yaml.safe_dump(settings))
    for event in events:
        EventsFile(run_dir).append(event)
    if results is not None:
        evaluation = Evaluation(list(results), [], 1.0, "basic")
        (run_dir / "results.json").write_text(json.dumps({"test": evaluation.as_dict()}))
        (run_dir / "counts.json").write_text(json.dumps({"test": count_utterances(results).as_dict()}))
    return run_dir


def table(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[list[dict[str, str]], str]:
    """Return the rows of the table, and the notes below it."""
    assert main([*map(str, arguments)]) == 0
    printed, _, notes = capsys.readouterr().out.partition("\n\n")
    titles, *rows = [re.split(r" {2,}", line.strip()) for line in printed.splitlines()]
    return [dict(zip(titles, row, strict=True)) for row in rows], notes


def test_figures_equal_those_in_the_files_and_those_of_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {"good": 0.05, "similar": 0.055, "bad": 0.2}
    evaluations = {name: simulated(100, seed, error_rate=rate) for seed, (name, rate) in enumerate(rates.items())}
    for name, results in evaluations.items():
        make_run(tmp_path / name, results=results)
    rows, notes = table(capsys, tmp_path)
    assert [list(row) for row in rows] == [TITLES] * 3
    stored = {name: json.loads((tmp_path / name / "results.json").read_text())["test"] for name in rates}
    assert [row["run"] for row in rows] == sorted(rates, key=lambda name: stored[name]["wer"])
    best, *others = rows
    assert (best["test to best"], best["test corrected p"]) == ("best", "-")
    for row in rows:
        result = stored[row["run"]]
        assert row["test WER %"] == f"{percent(result['wer'], 2)[:-2]} ({interval(result['wer_interval'])})"
    comparisons = [compare(evaluations[best["run"]], evaluations[row["run"]])["difference"] for row in others]
    corrected = holm([comparison["speaker_p_value"] for comparison in comparisons])
    for row, comparison, p_value in zip(others, comparisons, corrected, strict=True):
        ends = interval(comparison["speaker_interval"], points)
        assert row["test to best"] == f"{points(comparison['rate'])} ({ends})"
        assert row["test corrected p"] == probability(p_value) + " *" * (p_value < 0.05)
    assert others[-1]["test corrected p"].endswith("*")
    assert "2 comparisons" in notes


def test_runs_tested_on_other_utterances_or_references_and_runs_without_counts_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = simulated(30, seed=1)
    for name in ("a", "b"):
        make_run(tmp_path / name, results=results)
    make_run(tmp_path / "fewer", results=results[:20])
    make_run(tmp_path / "references", results=[replace(results[0], reference="nine"), *results[1:]])
    old = make_run(tmp_path / "old", results=results)
    (old / "counts.json").unlink()
    make_run(tmp_path / "untested", events=[START])
    rows, notes = table(capsys, tmp_path, "--sort", "name")
    assert {row["run"]: row["test to best"] for row in rows} == {
        "a": "best",
        "b": "+0.00 (+0.00 to +0.00)",
        "fewer": "not comparable",
        "references": "not comparable",
        "old": "not stored",
        "untested": "-",
    }
    assert "1 comparison;" in notes


def test_texts_without_spaces_are_compared_by_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = [scored("你好世界", "你好世", name=str(number)) for number in range(9)]
    make_run(tmp_path / "run", results=results)
    [row], _ = table(capsys, tmp_path)
    assert row["test CER %"].startswith("25.00 ")


def test_up_to_four_settings_that_differ_have_a_column_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "x" / "a", "seed=1", "optimizer.lr=1e-3")
    make_run(tmp_path / "x" / "b", "seed=2", "optimizer.lr=1e-4")
    make_run(tmp_path / "x" / "c", "seed=2", "optimizer.lr=1e-4")
    rows, _ = table(capsys, tmp_path, "--sort", "seed")
    shown = [[row[key] for key in ("run", "optimizer.lr", "seed")] for row in rows]
    assert shown == [["x/a", "0.001", "1"], ["x/b", "0.0001", "2"], ["x/c", "0.0001", "2"]]
    assert len(rows[0]) == 7, "no other setting differs, although run_dir does"


def test_more_settings_that_differ_are_listed_against_the_most_frequent_values() -> None:
    usual: dict[str, Any] = {"a": 1, "b": 1, "c": None, "d": "x", "e": [1, 2]}
    other = {"a": 2, "b": 1, "c": True, "d": "y", "e": [1]}
    runs = [usual, other, {}, usual, {**usual, "b": 2}]
    assert setting_columns(runs) == {"changed settings": ["-", "a=2 c=true d=y e=[1]", "-", "-", "b=2"]}


def test_settings_that_only_one_component_has_are_left_out() -> None:
    conformer = {"encoder.name": "conformer", "encoder.dim": 8, "encoder.block.num_heads": 2, "seed": 0}
    lstm = {"encoder.name": "lstm", "encoder.dim": 8, "seed": 0}
    prompted = {**lstm, "prompt.name": "label", "prompt.label": "language"}
    assert differing([conformer, lstm]) == ["encoder.name"]
    assert differing([lstm, prompted]) == ["prompt.name"]
    assert differing([conformer, lstm, {**conformer, "encoder.block.num_heads": 4}]) == [
        "encoder.name",
        "encoder.block.num_heads",
    ]
    assert differing([lstm, {**lstm, "trainer.max_time": "1h"}]) == ["trainer.max_time"]


def test_paths_below_the_run_folder_are_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        make_run(tmp_path / name, f"doctor.report={tmp_path / name}/doctor.html")
    rows, _ = table(capsys, tmp_path)
    assert "doctor.report" not in rows[0]


@pytest.mark.parametrize(
    ("events", "tested", "state"),
    [
        (FINISHED, True, "finished"),
        ([START, Progress(60, 1, 6, 10, 100), EndedEarly("why"), Bundled()], True, "finished early, at step 60 of 100"),
        ([*FINISHED, START, Progress(110, 1, 9, 10, 200)], True, "stopped at step 110 of 200"),
        ([START, Progress(1_000, 1, 9, 10)], False, "stopped at step 1,000"),
        ([START], False, "stopped before the first step"),
        (FINISHED, False, "stopped in the test, at step 100 of 100"),
        ([START, Progress(5, 1, 5, 10, 50), Warned("error: no room.")], False, "failed at step 5 of 50: no room"),
        ([START, Warned("error: no room."), *FINISHED], True, "finished"),
    ],
)
def test_the_state_follows_from_the_events_of_the_latest_start(
    events: Sequence[Event], tested: bool, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run", events=events, results=simulated(9, seed=1) if tested else None)
    [row], _ = table(capsys, tmp_path)
    assert row["state"] == state


def test_a_run_whose_log_another_process_has_locked_is_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = make_run(tmp_path / "run", events=[START, Progress(5, 1, 5, 10, 50)])
    lock = "import fcntl, sys\nfile = open(sys.argv[1], 'a')\n"
    lock += "fcntl.lockf(file, fcntl.LOCK_EX)\nprint(flush=True)\ninput()"
    command = [sys.executable, "-c", lock, str(run_dir / "train.log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        [row], _ = table(capsys, tmp_path)
        other.communicate("\n")
    assert row["state"] == "running, at step 5 of 50"
    [row], _ = table(capsys, tmp_path)
    assert row["state"] == "stopped at step 5 of 50"
    with (run_dir / "train.log").open("a") as log:
        fcntl.lockf(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the command has left no lock


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.yaml", "a: ["),
        ("config.yaml", "3"),
        ("results.json", '{"test": {"wer": 0.'),
        ("results.json", '{"test": 3}'),
        ("results.json", '{"test": {"wer": "low"}}'),
        ("results.json", '{"test": {"wer": 0.5, "wer_interval": [1]}}'),
        ("results.json", "\x00"),
        ("counts.json", "[]"),
        ("counts.json", '{"test": {"unit": "word"}}'),
        ("events.jsonl", '{"time": 1, "event": "progr'),
    ],
)
def test_a_damaged_file_is_named_in_the_row_of_its_run(
    file: str, content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "ab":
        make_run(tmp_path / name, results=simulated(9, seed=1))
    (tmp_path / "b" / file).write_text(content)
    rows, _ = table(capsys, tmp_path, "--sort", "name")
    assert [row["run"] for row in rows] == ["a", "b"]
    assert rows[0]["state"] == "finished"
    assert "damaged" in rows[1]["state"]
    assert file in rows[1]["state"]


def test_time_parameters_and_the_best_validation_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    validations = [Validated(step, 1.0, "wer", wer) for step, wer in ((0, 0.1), (5, 0.4), (6, 0.25), (7, None))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", iter(range(0, 10_000, 600)).__next__)
        make_run(tmp_path / "run", events=[START, Progress(3, 1, 3, 9), *validations])
    [row], _ = table(capsys, tmp_path)
    assert [row[title] for title in ("valid WER %", "time", "parameters")] == ["25.00", "10 min", "2,628,237"]


def test_runs_are_sorted_and_those_without_a_value_come_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed, wer in (("a", 10, 0.3), ("b", 9, None), ("c", 100, 0.2)):
        events = [START] if wer is None else [START, Validated(5, 1.0, "wer", wer)]
        make_run(tmp_path / name, f"seed={seed}", events=events)

    def order(*arguments: str) -> str:
        return "".join(row["run"] for row in table(capsys, tmp_path, *arguments)[0])

    assert (order(), order("--sort", "valid")) == ("cab", "cab"), "without results, validations decide"
    assert (order("--sort", "seed"), order("--sort", "name")) == ("bac", "abc")
    with refused(InputError, "--sort", got="sead"):
        main([str(tmp_path), "--sort", "sead"])


def test_runs_are_found_up_to_three_levels_deep_once_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    below = ["a", "a/b", "c/d/e", "c/d/e/too_deep", ".hidden"]
    for name in below:
        make_run(tmp_path / "runs" / name)
    (tmp_path / "runs" / "z").symlink_to(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "no_run").mkdir()
    rows, _ = table(capsys, tmp_path / "runs", "--sort", "name")
    assert [row["run"] for row in rows] == ["a", "a/b", "c/d/e"]
    rows, _ = table(capsys, tmp_path / "runs" / "a" / "b")
    assert [row["run"] for row in rows] == ["b"]
    several = [tmp_path / "runs" / name for name in ("a", "a/b", "c")]
    rows, _ = table(capsys, *several, "--sort", "name")
    names = ["a", "a/b", "c/d/e", "c/d/e/too_deep"]
    assert [row["run"] for row in rows] == [str(tmp_path / "runs" / name) for name in names], "depth counts from c"


def test_a_language_model_has_a_row_without_error_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = make_run(
        tmp_path / "lm",
        events=[
            Started(
                0,
                "LSTM",
                {"parameters": 1_000, "tokens": 29},
                {"sentences": 5, "words": 20},
                {"sentences": 2},
                "",
                "",
                "",
                "",
            ),
            Bundled(),
        ],
    )
    (run_dir / "results.json").write_text(json.dumps({"test": {"per_word": 30.0, "words": 20}}))
    [row], _ = table(capsys, tmp_path)
    assert (row["state"], row["parameters"], "test WER %" in row) == ("finished", "1,000", False)


@pytest.mark.parametrize("folder", ["empty", "none"])
def test_a_folder_without_runs_is_refused(folder: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with refused(InputError, f"FOLDER ... {tmp_path / folder}", cure="run_dir"):
        main([str(tmp_path / folder)])


def test_special_characters_are_escaped_in_markdown_and_latex() -> None:
    rows = [("run", "WER %"), (r"a|b_c*\x", "50")]
    assert markdown(rows) == ["| run | WER % |", "| --- | ---: |", r"| a\|b\_c\*\\x | 50 |"]
    assert latex(rows)[:4] == [r"\begin{tabular}{lr}", r"\toprule", r"run & WER \% \\", r"\midrule"]
    assert latex(rows)[4:] == [r"a\textbar{}b\_c*\textbackslash{}x & 50 \\", r"\bottomrule", r"\end{tabular}"]


def test_names_from_files_cannot_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run", events=[START, Warned("error: \x1b[31m")])
    run_dir = (tmp_path / "run").rename(tmp_path / "a\x1b[31m")
    (run_dir / "results.json").write_text(json.dumps({"\x1b[31m": {"wer": 0.5}}))
    assert main([str(tmp_path)]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("form", ["markdown", "latex"])
def test_each_format_has_the_cells_of_the_text(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, name in enumerate(("a", "b")):
        make_run(tmp_path / name, results=simulated(30, seed, error_rate=0.1 + seed / 10))
    rows, _ = table(capsys, tmp_path)
    assert main([str(tmp_path), "--format", form]) == 0
    lines = capsys.readouterr().out.splitlines()
    plain = {r"\textless{}": "<", r"\<": "<", r"\*": "*"}
    for row in rows:
        [line] = [line for line in lines if re.match(rf"(\| )?{row['run']} [|&]", line)]
        cells = re.split(r" [|&] ", re.sub(r"^\| | \|$| \\\\$", "", line))
        for escaped, letter in plain.items():
            cells = [cell.replace(escaped, letter) for cell in cells]
        assert cells == [*row.values()]


def test_a_real_run_stores_the_errors_of_each_utterance_and_is_compared(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = json.loads((fluent / "run" / "results.json").read_text())["test"]
    counts = json.loads((fluent / "run" / "counts.json").read_text())
    assert sum(counts["test"]["errors"]) / sum(counts["test"]["lengths"]) == result["wer"]
    assert sorted(counts["test"]["ids"]) == sorted(f"test-{number}" for number in range(60))
    for name in ("run", "worse"):
        shutil.copytree(fluent / "run", tmp_path / name)
    counts["test"]["errors"] = [errors + 1 for errors in counts["test"]["errors"]]
    (tmp_path / "worse" / "counts.json").write_text(json.dumps(counts))
    rows, _ = table(capsys, tmp_path)
    assert [(row["run"], row["state"]) for row in rows] == [("run", "finished"), ("worse", "finished")]
    assert rows[0]["test WER %"].startswith(f"{100 * result['wer']:.2f}")
    assert rows[0]["test to best"] == "best"
    assert rows[1]["test corrected p"] == "< 0.001 *"


def test_the_table_needs_neither_torch_nor_hydra_nor_lightning(tmp_path: Path) -> None:
    make_run(tmp_path / "run", results=simulated(9, seed=1))
    code = "import sys\nfrom asr.runs import main\nmain(sys.argv[1:])\n"
    code += "assert not {'torch', 'hydra', 'lightning'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, cwd=ROOT, capture_output=True)
