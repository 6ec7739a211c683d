"""W&B, MLflow and Trackio: refused if the package is missing; otherwise they receive the content of metrics.csv."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from asr.core.training.trainer import chosen_loggers
from asr.errors import InputError
from asr.train import train
from tests.conftest import CONF, TINY, resolved, settings_with, tone_corpus
from tests.processes import metrics
from tests.refusals import refused

LOGGERS = sorted(path.stem for path in (CONF / "logger").glob("*.yaml"))
LOGGED = ("train/loss", "valid/wer")


def numbers(run_dir: Path, name: str) -> dict[int, float]:
    """Map steps to the values of a metric in metrics.csv."""
    return {int(row["step"]): float(row[name]) for row in metrics(run_dir) if row[name]}


def trained(tones: Path, run_dir: Path, logger: str, epochs: int, *more: str) -> None:
    few = ["data.max_train_utterances=16", f"trainer.max_epochs={epochs}"]
    train(settings_with(*TINY, *tone_corpus(tones), f"logger={logger}", f"run_dir={run_dir}", *few, *more))


@pytest.mark.parametrize("name", LOGGERS)
def test_a_logger_whose_package_is_absent_is_refused_in_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for path in (CONF / "logger").glob("*.yaml"):
        (tmp_path / path.stem).mkdir()  # W&B leaves a folder named wandb, which is not the package
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    message = f"logger={name} ... {name}"
    with refused(InputError, message):
        chosen_loggers(resolved(f"logger={name}"))


def test_several_loggers_can_be_chosen_and_by_default_there_is_no_logger() -> None:
    assert [*resolved("logger=[mlflow,trackio,wandb]")["logger"]] == LOGGERS
    assert chosen_loggers(resolved()) == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("logger.wandb.project=''", "logger.wandb.project; got ''"),
        (
            "+logger.wandb.key=1",
            "logger.wandb ... key",
        ),
        ("+logger.nothing.x=1", "logger.name ... asr/components/logger"),
    ],
)
def test_an_invalid_setting_is_named(override: str, message: str) -> None:
    with refused(InputError, message):
        chosen_loggers(resolved("logger=wandb", override))


def test_an_offline_run_of_wandb_contains_the_metrics_of_both_epochs(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run_dir = tmp_path / "run"
    trained(tones, run_dir, "wandb", epochs=2)
    [log] = (run_dir / "wandb").glob("offline-run-*/*.wandb")
    rows = wandb_rows(log)
    for name in LOGGED:
        logged = {int(row["trainer/global_step"]): row[name] for row in rows if name in row}
        assert logged == pytest.approx(numbers(run_dir, name)), name
    assert len(numbers(run_dir, "valid/wer")) == 2


def test_wandb_without_an_account_is_reported_in_one_line(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed").teardown()  # resets the mode of an earlier run
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with refused(InputError, "logger=wandb ... reachable account"):
        trained(tones, tmp_path / "run", "wandb", epochs=1)


def wandb_rows(log: Path) -> list[dict[str, Any]]:
    """Read the logged rows of a run: protocol buffers in LevelDB's log format, after W&B's header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    content, place, rows, started = log.read_bytes(), 7, [], b""
    while place + 7 <= len(content):
        if 2**15 - place % 2**15 < 7:  # no room for a header: the rest of the block is empty
            place += 2**15 - place % 2**15
        _, length, kind = struct.unpack_from("<IHB", content, place)
        started += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(started)
            items, started = record.history.item, b""
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def test_mlflow_contains_the_metrics_of_a_resumed_run(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    run_dir = tmp_path / "run"
    trained(tones, run_dir, "mlflow", epochs=1)
    trained(tones, run_dir, "mlflow", 2, "resume.allow=[trainer.max_epochs]")
    client = mlflow.MlflowClient(f"sqlite:///{run_dir / 'mlflow.db'}")
    [run] = client.search_runs([client.get_experiment_by_name("asr").experiment_id])
    assert run.data.params["encoder/name"] == "conformer"
    for name in LOGGED:
        logged = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, name)}
        assert logged == pytest.approx(numbers(run_dir, name)), name
    assert len(numbers(run_dir, "valid/wer")) == 2


def test_trackio_contains_the_metrics_of_a_resumed_run(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when the package is imported
    pytest.importorskip("trackio", reason="trackio is not installed")
    from trackio.sqlite_storage import SQLiteStorage

    run_dir = tmp_path / "run"
    trained(tones, run_dir, "trackio", epochs=1)
    trained(tones, run_dir, "trackio", 2, "resume.allow=[trainer.max_epochs]")
    [name] = SQLiteStorage.get_runs("asr")
    rows = SQLiteStorage.get_logs("asr", name)
    for metric in LOGGED:
        logged = {row["step"]: row[metric] for row in rows if metric in row}
        assert logged == pytest.approx(numbers(run_dir, metric)), metric
    assert len(numbers(run_dir, "valid/wer")) == 2


def test_trackio_names_a_space_that_it_cannot_reach(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("trackio", reason="trackio is not installed")
    with refused(InputError, "logger=trackio ... nobody/nothing"):
        trained(tones, tmp_path / "run", "trackio", 1, "logger.trackio.space=nobody/nothing")
