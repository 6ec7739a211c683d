"""A run that ends early reports where and why in its last line; a value that is not finite does not end a run."""

import html
import math
import re
from dataclasses import replace
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch

from asr.core.data.manifest import read_manifest, write_manifest
from asr.core.training.callbacks import Patience
from asr.core.training.objective import WER
from tests.conftest import TINY, resolved, tone_corpus
from tests.processes import finish, metrics, start

SHORT = ["data.batch_seconds=20", "num_threads=1", "corpus.test=[]", "trainer.max_epochs=3"]


def last_line(run_dir: Path, corpus: Path, *overrides: str) -> str:
    """Train; return the last line of the run's log."""
    settings = resolved(*TINY, *tone_corpus(corpus), *SHORT, f"run_dir={run_dir}", *overrides)
    assert finish(start(settings, run_dir.with_suffix(".log"))) == 0, run_dir.with_suffix(".log").read_text()
    return (run_dir / "train.log").read_text().splitlines()[-1]


@pytest.mark.apps
@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["early_stopping.patience=1", "optimizer.lr=0"], r"no better WER than .*early_stopping\.patience"),
        (["+trainer.max_time='00:00:00:01'", "trainer.max_epochs=1000"], r"trainer\.max_time=00:00:00:01"),
        pytest.param(["+trainer.fast_dev_run=true"], r"trainer\.fast_dev_run=True", marks=pytest.mark.slow),
        pytest.param(["+trainer.limit_train_batches=1"], r"trainer\.limit_train_batches=1", marks=pytest.mark.slow),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_a_run_that_ends_early_reports_step_and_reason_in_its_last_line_and_once_on_its_page(
    overrides: list[str], reason: str, tones: Path, tmp_path: Path
) -> None:
    line = last_line(tmp_path / "run", tones, *overrides)
    stopped = re.search(rf"stopped at step (\d+) of ([\d,]+): {reason}", line)
    assert stopped, line
    assert html.unescape((tmp_path / "run" / "report.html").read_text()).count(stopped.string[stopped.start() :]) == 1
    assert int(stopped[1]) == int(metrics(tmp_path / "run")[-1]["step"]) < int(stopped[2].replace(",", ""))


def test_a_run_that_ends_before_its_first_step_is_refused_with_the_reason(tones: Path, tmp_path: Path) -> None:
    settings = resolved(
        *TINY, *tone_corpus(tones), *SHORT, f"run_dir={tmp_path / 'run'}", "+trainer.max_time={days: 0}"
    )
    assert finish(start(settings, tmp_path / "log")) == 1
    assert re.search(r"error: .*at step 0 of \d+.*trainer\.max_time", (tmp_path / "log").read_text())


def test_a_validation_without_words_does_not_end_a_run(tones: Path, tmp_path: Path) -> None:
    wordless = [replace(utterance, text="") for utterance in read_manifest(tones / "valid.jsonl")[:2]]
    write_manifest(tmp_path / "wordless.jsonl", wordless)
    given = [f"corpus.valid=[{tmp_path / 'wordless.jsonl'}]", "early_stopping.patience=1"]
    assert "stopped" not in last_line(tmp_path / "run", tones, *given)
    assert sum(row["valid/loss"] != "" for row in metrics(tmp_path / "run")) == 3
    assert len(re.findall("early stopping ignores", (tmp_path / "run" / "train.log").read_text())) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("scores", "stops"), [((0.5, None, 0.25), False), ((0.5, None, 0.75, None, 0.75), True)])
def test_a_value_that_is_not_finite_is_no_improvement_and_does_not_count(
    value: float, scores: tuple[float | None, ...], stops: bool
) -> None:
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.state.fn, trainer.validating = "fit", True  # type: ignore[assignment]
    patience = Patience(2, WER)
    for score in scores:
        trainer.callback_metrics["valid/wer"] = torch.tensor(value if score is None else score)
        patience.on_validation_end(trainer, pl.LightningModule())
    assert (patience.reason is not None) == trainer.should_stop == stops
    assert float(patience.best_score) == min(filter(None, scores))
