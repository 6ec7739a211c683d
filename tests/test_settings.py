"""Invalid settings are refused in one line before the run begins."""

import socket
from pathlib import Path

import pytest
import torch

from asr.errors import InputError
from asr.training.fit import is_lost_worker
from asr.training.trainer import OWN, make_trainer
from tests.conftest import TINY, resolved, settings_with, tone_corpus
from tests.processes import finish, start


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=-1", "seed must be a whole number from 0 to 4,294,967,295; got -1."),
        ("seed=abc", "seed must be a whole number from 0 to 4,294,967,295; got 'abc'."),
        ("num_threads=0", "num_threads must be a whole number from 1 to 1,024; got 0."),
        ("run_dir=null", "run_dir must be .*; got None."),
        (
            "run_dir=s3://bucket/run",
            "run_dir must be the path of a folder on a disk, not a URL, .*; got 's3://bucket/run'.",
        ),
        ("data.cache_dir=s3://bucket", "data.cache_dir must be the path of a folder on a disk"),
        ("data.index_dir=https://host/x", "data.index_dir must be the path of a folder on a disk"),
        ("gradient_checkpointing=abc", "gradient_checkpointing must be true or false; got 'abc'."),
        ("data.batch_seconds=abc", "data.batch_seconds must be a number greater than 0, .*; got 'abc'."),
        ("data.num_workers=-1", "data.num_workers must be a whole number from 0 to 1,024.*; got -1."),
        ("data.max_bad_fraction=2", "data.max_bad_fraction must be a number from 0 to 1; got 2."),
        ("+data.nonsense=3", "data must set exactly batch_seconds, .*; missing: none, unknown: nonsense."),
        ("checkpoint.every_steps=0", "checkpoint.every_steps must be a whole number from 1 to 1,000,000,000; got 0."),
        (
            "resume.allow=world_size",
            r"resume.allow must be a list of settings, such as \[world_size\]; got 'world_size'.",
        ),
        (
            "trainer.max_epochs=abc",
            "trainer.max_epochs must be a positive whole number, or -1 for no limit, or null; got 'abc'.",
        ),
        ("ema.decay=2", "ema.decay must be a number between 0 and 1, or null; got 2."),
        ("early_stopping.patience=0", "early_stopping.patience must be a whole number from 1 to .*, or null; got 0."),
        (
            "trainer.accumulate_grad_batches=0",
            "trainer.accumulate_grad_batches must be a whole number from 1 to .*; got 0.",
        ),
        (
            "trainer.devices=0",
            "trainer.devices must be a positive whole number, -1 or auto for all devices, .*; got 0.",
        ),
    ],
)
def test_an_invalid_setting_is_named_with_its_rule(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings_with(override)


@pytest.mark.parametrize("name", [*OWN, "callbacks", "default_root_dir", "enable_progress_bar"])
def test_an_argument_of_the_trainer_that_asr_sets_itself_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(InputError, match=rf"trainer\.{name} must be left out, because asr sets it; got 2"):
        make_trainer(settings_with(*TINY, f"+trainer.{name}=2"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("max_time=1", r"Correct or leave out trainer\.max_time=1"),
        ("max_time=1 hour", r"trainer\.max_time='1 hour'"),
        ("limit_train_batches=0", r"trainer\.limit_train_batches must be above 0.*got 0"),
        ("limit_train_batches=-1", r"trainer\.limit_train_batches=-1"),
        ("profiler=abc", r"trainer\.profiler='abc'"),
        ("nonsense=3", r"nonsense"),
        ("plugins=5", r"trainer\.plugins=5"),
        ("barebones=true", r"trainer\.barebones=True"),
    ],
)
def test_another_argument_of_the_trainer_that_fails_is_reported_in_one_line(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        make_trainer(settings_with(*TINY, f"+trainer.{override}"))
    assert "\n" not in str(raised.value)


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
        with pytest.raises(InputError, match=r"trainer\.val_check_interval must be 1\.0 or a multiple"):
            make_trainer(settings)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="Apple's device is available here")
def test_apples_device_is_a_valid_setting_but_is_refused_where_it_is_absent() -> None:
    settings = settings_with("trainer.accelerator=mps")
    with pytest.raises(InputError, match=r"trainer\.accelerator must be available to torch; got mps"):
        make_trainer(settings)


def test_an_absent_file_is_not_reported_as_a_dead_worker(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as absent:
        (tmp_path / "metrics.csv").open()
    assert not is_lost_worker(absent.value)
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(FileNotFoundError) as gone:
        client.connect(str(tmp_path / "socket"))
    assert is_lost_worker(gone.value)
