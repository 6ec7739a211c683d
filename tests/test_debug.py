"""debug=overfit, debug=fast and debug=profile: their settings, their output, and their precedence over experiments."""

import html
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asr.base.text.word_errors import ErrorCounts
from asr.core.objective.outcome import check_learnt
from asr.errors import InputError
from asr.plan import plan
from asr.train import train
from tests.conftest import CONF, TINY, resolved, settings_with, tone_corpus
from tests.processes import examples, metrics
from tests.refusals import refused

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
SMALL = [line for line in TINY if not line.startswith(("augment", "data", "checkpoint", "schedule"))]


# Recurrent encoders emit letters only late in training, so they get these settings.
RECURRENT = ["encoder.dim=128", "optimizer.lr=3e-3", "trainer.max_steps=400"]


@pytest.mark.slow
def has(settings: dict[str, Any], name: str) -> bool:
    """Return whether an encoder has a setting, such as encoder.block.dropout."""
    _, *above, last = name.split(".")
    for key in above:
        settings = settings.get(key, {})
    return last in settings


@pytest.mark.parametrize(
    ("encoder", "longer"),
    [
        ("conformer_xs", []),
        ("transformer", []),
        ("transformer_xl", []),
        ("lstm", RECURRENT),
        ("gru", RECURRENT),
    ],
)
def test_eight_utterances_are_memorised_and_the_success_is_reported(
    encoder: str, longer: list[str], tones: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = tmp_path / "run"
    settings = resolved(f"encoder={encoder}")["encoder"]
    lines = [line for line in SMALL if not line.startswith("encoder.") or has(settings, line.partition("=")[0])]
    small = [f"encoder={encoder}", *lines]
    quick = ["trainer.max_steps=150", "optimizer.lr=4e-3", "trainer.check_val_every_n_epoch=75"]
    caplog.set_level("INFO", "asr")
    train(settings_with("debug=overfit", *small, *tone_corpus(tones), f"run_dir={run_dir}", *quick, *longer))
    results = json.loads((run_dir / "results.json").read_text())
    assert [*results] == ["train"]
    assert results["train"]["utterances"] == 8
    words = results["train"]["reference_words"]
    assert f"training utterances are memorised: 0 errors of {words} words" in caplog.messages
    dropped = "dropped 40 of 48 training utterances: beyond the first data.max_train_utterances=8 (train-8, train-9,"
    assert dropped in (run_dir / "train.log").read_text()
    assert re.search(
        r"48 training utterances in the manifests.*\n.*training and validating on 8 utterances,",
        "\n".join(caplog.messages),
    )
    assert {json.loads(line)["id"] for line in examples(run_dir)} == {f"train-{number}" for number in range(8)}


def test_debug_fast_trains_validates_and_writes_all_files(tones: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    wer = train(settings_with("debug=fast", *tone_corpus(tones), "trainer.accelerator=cpu", f"run_dir={run_dir}"))
    validated = {row["step"]: float(row["valid/wer"]) for row in metrics(run_dir) if row["valid/wer"]}
    assert validated == {"2": pytest.approx(wer, abs=1e-4)}, "a sweep minimises the WER of the last validation"
    assert {"bundle", "results.json", "report.html"} <= {path.name for path in run_dir.iterdir()}
    assert [row["step"] for row in metrics(run_dir) if row["train/loss"]] == ["1", "2"]


def test_a_profile_shows_where_a_few_batches_spend_their_time(
    tones: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = tmp_path / "run"
    caplog.set_level("INFO", "asr")
    few = ["debug.profile_batches=2", "trainer.max_steps=5"]
    train(
        settings_with("debug=profile", *SMALL, *tone_corpus(tones), "data.batch_seconds=10", f"run_dir={run_dir}", *few)
    )
    log = "\n".join(caplog.messages)
    assert re.search(r"profile of 2 batches .*\n.* ms:\n +[\d.]+  \S+Model: model\n", log), log
    assert re.search(r"Optimizer\.step#AdamW\.step .* 2 *\n", log), "each batch is profiled once"
    assert f"trace written to {run_dir / 'trace.json'}: open it" in log
    page = html.unescape((run_dir / "report.html").read_text())
    assert re.search(r" ms:\n +[\d.]+  \S+Model: model\n", page)
    assert "Optimizer.step#AdamW.step" in page
    assert str(run_dir / "trace.json") in page
    names = [event.get("name", "") for event in json.loads((run_dir / "trace.json").read_text())["traceEvents"]]
    assert names.count("[pl][module]asr.components.encoder.conformer.Conformer: model.encoder") == 2
    assert "[pl][module]asr.components.encoder.block.conformer_block.ConformerBlock: model.encoder.blocks.0" in names
    assert (run_dir / "results.json").read_text().strip() == "{}", "a profile must not evaluate test sets"


def results(counts: ErrorCounts) -> Any:
    """Make the results of an evaluation on one manifest."""
    return {"train": SimpleNamespace(counts=counts)}


def test_failing_to_overfit_is_an_error_that_names_possible_causes() -> None:
    must = "WER ... 5.0% ... 4 errors of 60 words ... report.html"
    with refused(InputError, must):
        check_learnt(results(ErrorCounts(1, 1, 2, reference_length=60, utterances=8)), max_wer=0.05)
    check_learnt(results(ErrorCounts(3, 0, 0, reference_length=60, utterances=8)), max_wer=0.05)
    with pytest.raises(InputError):
        check_learnt(results(ErrorCounts()), max_wer=0.05)


@pytest.mark.parametrize("debug", ["overfit", "fast"])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_debug_settings_override_every_experiment(debug: str, experiment: str) -> None:
    config = resolved(f"experiment={experiment}", f"debug={debug}")
    assert config["data"]["max_train_utterances"] == 8
    assert config["trainer"]["max_steps"] <= 200
    assert config["trainer"]["devices"] == config["trainer"]["accumulate_grad_batches"] == 1
    assert config["run_dir"].startswith(f"runs/{debug}/")
    assert config["encoder"]["name"] == resolved(f"experiment={experiment}")["encoder"]["name"]


def test_the_plan_covers_only_the_utterances_that_debug_selects(
    tones: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(settings_with("debug=overfit", *SMALL, *tone_corpus(tones)))
    printed = capsys.readouterr().out
    assert printed.startswith("tones: 8 of 48 training utterances")
    assert "validation: 8 utterances" in printed
