"""The benchmark of memory: the forecast of asr.doctor is close to the memory that training steps take."""

import json
import sys
from pathlib import Path

import pytest

from asr.apps.doctor.memory import FULL, LORA
from benchmarks import training_memory


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sets glibc's allocator")
def test_the_forecast_is_within_15_percent_of_the_memory_that_steps_take(tmp_path: Path) -> None:
    options = ["--encoder", "conformer_s", "--batches", "8x5", "--output-dir", str(tmp_path)]
    assert training_memory.main(options) == 0
    rows = json.loads((tmp_path / "training_memory.json").read_text())["rows"]
    assert [row["trained"] for row in rows] == [FULL, LORA]
    for row in rows:
        assert 0.85 < row["returned / forecast"] < 1.15
        assert row["kept GB"] > 0.85 * row["forecast GB"]
