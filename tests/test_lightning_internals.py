"""The internals of Lightning that asr uses still exist and behave as asr requires."""

import inspect
import signal
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies.launchers import subprocess_script
from torch import Tensor
from torch.utils.data import DataLoader

from asr.core.data.position import Position, Share
from asr.core.training import lightning_internals as internals

BATCHES = 4  # batches per epoch


class Line(pl.LightningModule):
    """A net with one weight that records the batches and validations it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.seen: list[Any] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.seen.append((self.current_epoch, batch_idx))
        self.log("weight", self.weight.detach())
        return (self.weight * batch).sum()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.seen.append("validation")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Steps(Logger):
    """Record the numbers of the logged steps."""

    name, version = "steps", ""

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[int | None] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.logged.append(step)

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass


def trainer(*callbacks: pl.Callback, **settings: Any) -> pl.Trainer:
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    made = {"accelerator": "cpu", "max_epochs": 2, "num_sanity_val_steps": 0, **dict.fromkeys(quiet, False), **settings}
    return pl.Trainer(callbacks=list(callbacks), **made)


def fit(trainer: pl.Trainer, checkpoint: Path | None = None) -> Line:
    line = Line()
    loader = DataLoader(torch.ones(BATCHES, 1))
    trainer.fit(line, loader, DataLoader(torch.ones(1, 1)), ckpt_path=checkpoint, weights_only=True)
    return line


def test_fit_uses_our_signal_handlers_and_installs_none_of_lightnings() -> None:
    calls: list[Any] = []

    class Look(pl.Callback):
        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            calls.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    ours = trainer(Look(), max_epochs=1)
    internals.replace_signal_handlers(ours, lambda: calls.append("listen"), lambda: calls.append("give back"))
    fit(ours)
    assert calls == ["listen", before, "give back"]


def test_started_batches_are_counted_within_the_epoch() -> None:
    counts: list[tuple[str, int]] = []

    class Count(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
            counts.append(("batch", internals.batches_begun(trainer)))

        def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            counts.append(("validation", internals.batches_begun(trainer)))

        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            counts.append(("end", internals.batches_begun(trainer)))

    fit(trainer(Count(), val_check_interval=2))
    epoch = [("batch", 1), ("batch", 2), ("validation", 2), ("batch", 3), ("batch", 4), ("validation", 4), ("end", 4)]
    assert counts == 2 * epoch


class Save(pl.Callback):
    """After each validation, write a checkpoint that contains a given position."""

    def __init__(self, path: Path, position: Position) -> None:
        self.path, self.position = path, position

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        checkpoint = internals.full_checkpoint(trainer)
        keys = checkpoint["loops"]["fit_loop"].keys()
        internals.set_position(checkpoint, self.position, logged=trainer.global_step)
        assert checkpoint["loops"]["fit_loop"].keys() == keys, "no key is added that Lightning does not read"
        torch.save(checkpoint, self.path)


class BeginWholeEpoch(pl.Callback):
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        internals.begin_whole_epoch(trainer)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_run_continues_at_the_position_in_its_checkpoint(batch: int, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    fit(trainer(Save(path, Position(1, (Share(1, batch),)))))
    again = fit(trainer(BeginWholeEpoch()), path)
    assert again.seen == [*((1, number) for number in range(batch, BATCHES)), "validation"]


@pytest.mark.parametrize("bound", [{"max_epochs": 2}, {"max_epochs": -1, "max_steps": 8}], ids=str)
def test_a_run_that_continues_with_a_whole_epoch_continues_its_step_numbers(
    bound: dict[str, int], tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    fit(trainer(Save(path, Position(1, (Share(1, 0),))), max_epochs=1))
    steps = Steps()
    again = fit(trainer(BeginWholeEpoch(), **bound, logger=steps, log_every_n_steps=1), path)
    assert again.seen == [(1, 0), (1, 1), (1, 2), (1, 3), "validation"]
    assert steps.logged == [4, 5, 6, 7], "steps are counted from 0"


def test_a_forgotten_metric_is_absent_from_the_log_until_it_is_logged_again() -> None:
    lines: list[dict[str, float]] = []

    class Lines(Steps):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            lines.append(metrics)

    class Sometimes(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, _: Any, batch_idx: int) -> None:
            if batch_idx in (0, 3):
                self.log("sometimes", float(batch_idx))
            else:
                internals.forget_metric(trainer, "sometimes")

    fit(trainer(Sometimes(), max_epochs=1, logger=Lines(), log_every_n_steps=1))
    assert [line.get("sometimes") for line in lines if "weight" in line] == [0.0, None, None, 3.0]


def test_full_checkpoint_returns_the_content_that_lightning_saves(tmp_path: Path) -> None:
    ours = trainer(max_epochs=1)
    fit(ours)
    ours.save_checkpoint(tmp_path / "checkpoint")
    saved = torch.load(tmp_path / "checkpoint", weights_only=True)
    assert str(internals.full_checkpoint(ours)) == str(saved)
    assert {"state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks", "global_step"} <= saved.keys()


def test_lightnings_launcher_calls_our_watch_after_starting_the_other_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess_script, "_launch_process_observer", None)  # restored after the test
    launcher = subprocess_script._SubprocessScriptLauncher(LightningEnvironment(), num_processes=1, num_nodes=1)
    calls: list[str] = []
    monkeypatch.setattr(launcher, "_call_children_scripts", lambda: calls.append("started"))
    internals.replace_process_watch(lambda: calls.append("watched"))
    launcher.launch(lambda: calls.append("run"))
    assert calls == ["started", "watched", "run"]


def test_the_launcher_of_several_processes_keeps_a_list_of_them() -> None:
    several = trainer(devices=2, strategy="ddp")
    assert several.strategy.launcher.procs == []  # type: ignore[union-attr]  # attribute of today's launcher
    several.strategy.launcher.procs.append("a process")  # type: ignore[union-attr]
    assert internals.started_processes(several) == ["a process"]
    assert internals.started_processes(trainer()) == ()


def test_the_progress_bar_calls_a_method_for_the_label_of_an_epoch() -> None:
    """`asr.core.training.progress.Bar` overrides this method."""
    assert [*inspect.signature(RichProgressBar._get_train_description).parameters] == ["self", "current_epoch"]
