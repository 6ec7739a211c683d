"""The benchmark of cost against size: its slopes, its input, and a row for each task and size."""

import json
from pathlib import Path

import pytest

from asr.core.evaluation.utterances import read_scored
from benchmarks import scale
from benchmarks.corpus import Cost


def test_slopes_are_the_exponents_with_which_time_and_memory_grow() -> None:
    # With ten times the work, time grows by a factor of 100 (slope 2) and memory by a factor of 10 (slope 1).
    small, large = Cost(2.0, 0.0, 3.0), Cost(200.0, 0.0, 30.0)
    assert scale.slopes_of(5, small, 50, large) == pytest.approx([2.0, 1.0])
    assert scale.slopes_of(5, Cost(2.0, 0.0, 0.0), 50, large)[1] is None, "there is no slope if one of the values is 0"


def test_write_scored_with_every_3_puts_an_error_into_every_third_utterance(tmp_path: Path) -> None:
    line = {"audio_filepath": str(tmp_path / "0.wav"), "duration": 2.0, "text": "ONE TWO THREE", "speaker": "s"}
    (tmp_path / scale.MANIFEST).write_text(json.dumps(line) + "\n")
    results = read_scored(str(scale.write_scored(tmp_path, "page", 10, every=3)))
    assert [result.counts.errors for result in results] == [1, 0, 0, 1, 0, 0, 1, 0, 0, 1]


@pytest.mark.slow
def test_each_task_has_a_row_for_each_size(fluent: Path, tmp_path: Path) -> None:
    options = [str(fluent / "run"), str(fluent / "test.jsonl"), "--factors", "1", "2", "--share", "0.05"]
    assert scale.main([*options, "--output-dir", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "scale.json").read_text())["rows"]
    assert [row["task"] for row in rows] == [task.name for task in scale.TASKS for _ in range(2)]
    assert sum(row["CPU s"] for row in rows) > 5, "training, recognition and pages were measured"
    assert not (tmp_path / "scale").exists()
