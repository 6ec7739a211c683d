"""Invalid settings are refused in one line before the run begins."""

import socket
from pathlib import Path

import pytest
import torch

from asr.core.training.fit import is_lost_worker
from asr.core.training.trainer import OWN, make_trainer
from asr.errors import InputError
from tests.conftest import TINY, resolved, settings_with, tone_corpus
from tests.processes import finish, start
from tests.refusals import refused


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=-1", "seed; got -1"),
        ("seed=abc", "seed; got 'abc'"),
        ("num_threads=0", "num_threads; got 0"),
        ("run_dir=null", "run_dir; got None"),
        (
            "run_dir=s3://bucket/run",
            "run_dir; got 's3://bucket/run'",
        ),
        ("data.cache_dir=s3://bucket", "data.cache_dir ... on a disk"),
        ("data.index_dir=https://host/x", "data.index_dir ... on a disk"),
        ("gradient_checkpointing=abc", "gradient_checkpointing; got 'abc'"),
        ("data.batch_seconds=abc", "data.batch_seconds; got 'abc'"),
        ("data.num_workers=-1", "data.num_workers; got -1"),
        ("data.max_bad_fraction=2", "data.max_bad_fraction; got 2"),
        ("+data.nonsense=3", "data ... batch_seconds ... nonsense"),
        ("checkpoint.every_steps=0", "checkpoint.every_steps; got 0"),
        (
            "resume.allow=world_size",
            "resume.allow; got 'world_size'",
        ),
        (
            "trainer.max_epochs=abc",
            "trainer.max_epochs; got 'abc'",
        ),
        ("ema.decay=2", "ema.decay; got 2"),
        ("early_stopping.patience=0", "early_stopping.patience; got 0"),
        (
            "trainer.accumulate_grad_batches=0",
            "trainer.accumulate_grad_batches; got 0",
        ),
        (
            "trainer.devices=0",
            "trainer.devices; got 0",
        ),
    ],
)
def test_an_invalid_setting_is_named_with_its_rule(override: str, message: str) -> None:
    with refused(InputError, message):
        settings_with(override)


@pytest.mark.parametrize("name", [*OWN, "callbacks", "default_root_dir", "enable_progress_bar"])
def test_an_argument_of_the_trainer_that_asr_sets_itself_is_refused_by_its_name(name: str) -> None:
    with refused(InputError, f"trainer.{name}", got=2):
        make_trainer(settings_with(*TINY, f"+trainer.{name}=2"))


def test_callbacks_of_the_trainer_are_refused_with_the_group_that_adds_callbacks() -> None:
    with refused(InputError, "trainer.callbacks", got=["x"], cure="callback"):
        make_trainer(settings_with(*TINY, "+trainer.callbacks=[x]"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("max_time=1", "Correct or leave ... trainer.max_time=1"),
        ("max_time=1 hour", "trainer.max_time='1 hour'"),
        ("limit_train_batches=0", "trainer.limit_train_batches; got 0"),
        ("limit_train_batches=-1", "trainer.limit_train_batches=-1"),
        ("profiler=abc", "trainer.profiler='abc'"),
        ("nonsense=3", "nonsense"),
        ("plugins=5", "trainer.plugins=5"),
        ("barebones=true", "trainer.barebones=True"),
    ],
)
def test_another_argument_of_the_trainer_that_fails_is_reported_in_one_line(override: str, message: str) -> None:
    with refused(InputError, message):
        make_trainer(settings_with(*TINY, f"+trainer.{override}"))


@pytest.mark.parametrize("override", ["trainer.strategy=abc", "trainer.devices=abc"])
def test_arguments_refused_by_lightning_are_reported_in_one_line(override: str, tones: Path, tmp_path: Path) -> None:
    settings = resolved(*TINY, *tone_corpus(tones), f"run_dir={tmp_path / 'run'}", override)
    assert finish(start(settings, tmp_path / "log")) == 1
    text = (tmp_path / "log").read_text()
    assert "error: trainer must suit" in text, text
    assert "Traceback" not in text
    assert not (tmp_path / "run").exists(), "no run was started"


def test_an_argument_that_lightning_refuses_during_training_is_reported_in_one_line(
    tones: Path, tmp_path: Path
) -> None:
    """The number of batches of an epoch is unknown before."""
    settings = resolved(*TINY, *tone_corpus(tones), f"run_dir={tmp_path / 'run'}", "+trainer.val_check_interval=1000")
    assert finish(start(settings, tmp_path / "log")) == 1
    text = (tmp_path / "log").read_text()
    assert "error: trainer must suit" in text, text
    assert "trainer.val_check_interval=1000" in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("validation", "holds"),
    [
        (["+trainer.val_check_interval=4"], True),
        (["+trainer.val_check_interval=1.0"], True),
        (["+trainer.val_check_interval=1"], False),
        (["+trainer.val_check_interval=0.5"], False),
        (["+trainer.val_check_interval=4", "trainer.check_val_every_n_epoch=null"], False),
    ],
    ids=str,
)
def test_a_validation_within_an_optimizer_step_is_refused(validation: list[str], holds: bool, tmp_path: Path) -> None:
    settings = settings_with(*TINY, "trainer.accumulate_grad_batches=2", *validation)
    if holds:
        make_trainer(settings)
    else:
        with refused(InputError, "trainer.val_check_interval ... or a multiple"):
            make_trainer(settings)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="Apple's device is available here")
def test_apples_device_is_a_valid_setting_but_is_refused_where_it_is_absent() -> None:
    settings = settings_with("trainer.accelerator=mps")
    with refused(InputError, "trainer.accelerator; got mps"):
        make_trainer(settings)


def test_an_absent_file_is_not_reported_as_a_dead_worker(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as absent:
        (tmp_path / "metrics.csv").open()
    assert not is_lost_worker(absent.value)
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(FileNotFoundError) as gone:
        client.connect(str(tmp_path / "socket"))
    assert is_lost_worker(gone.value)
