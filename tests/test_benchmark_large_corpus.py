"""The benchmark of large corpora gives a row for each step, on a small one."""

import json
from pathlib import Path

import pytest

from benchmarks import large_corpus


@pytest.mark.slow
def test_a_small_corpus_gives_all_rows(tmp_path: Path) -> None:
    options = ["--lines", "3000", "--world-size", "2", "--batches", "3", "--batch-seconds", "60"]
    assert large_corpus.main([*options, "--output-dir", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "large_corpus.json").read_text())["rows"]
    assert len(rows) == 4
    assert rows[-1]["anonymous MB"] > 50, "two processes that have loaded torch"
    assert not (tmp_path / "large_corpus").exists()
