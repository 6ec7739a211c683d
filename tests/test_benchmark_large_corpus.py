"""The benchmarks of large corpora give all rows, tested on small corpora."""

import json
from pathlib import Path

import pytest

from benchmarks import large_corpus, planned_corpus


@pytest.mark.slow
def test_the_benchmark_of_large_corpora_prints_all_rows_for_a_small_corpus(tmp_path: Path) -> None:
    options = ["--lines", "3000", "--world-size", "2", "--batches", "3", "--batch-seconds", "60"]
    assert large_corpus.main([*options, "--output-dir", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "large_corpus.json").read_text())["rows"]
    assert len(rows) == 4
    assert rows[-1]["anonymous MB"] > 50, "the memory must include two processes that have loaded torch"
    assert not (tmp_path / "large_corpus").exists()


@pytest.mark.slow
def test_the_benchmark_of_planned_corpora_prints_a_row_for_each_size(tmp_path: Path) -> None:
    options = ["--lines", "3000", "6000", "--ranks", "4", "--batch-seconds", "60"]
    assert planned_corpus.main([*options, "--output-dir", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "planned_corpus.json").read_text())["rows"]
    assert [row["utterances"] for row in rows] == ["3,000", "6,000"]
    for row in rows:
        assert row["requests/s in total"] == pytest.approx(4 * row["requests/s per rank"])
        # Not exact, because speed perturbation changes the durations.
        assert row["GB/s in total"] == pytest.approx(4 * 300 * 17_000 / 1e9, rel=0.1)
    assert not (tmp_path / "planned_corpus").exists()
