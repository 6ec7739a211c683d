"""asr.plan: what it prints before any training, and that it leaves nothing behind."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from asr.plan import plan
from asr.train import train
from asr.training.data_module import SpeechData
from tests.conftest import ROOT, TINY, resolved, settings_with, tone_corpus
from tests.processes import finish, start, steps_logged


def report(capsys: pytest.CaptureFixture[str], corpus: Path, *overrides: str) -> str:
    plan(settings_with(*TINY, *tone_corpus(corpus), "run_dir=/nowhere/run", *overrides))
    return capsys.readouterr().out


def figures(printed: str, name: str) -> list[str]:
    """The columns of a line of the table."""
    (line,) = re.findall(rf"^ *{re.escape(name)}  +(.*)$", printed, re.MULTILINE)
    return re.split(r"  +", line)


def test_the_report_says_what_an_epoch_holds(tones: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = report(capsys, tones, "trainer.devices=2", "trainer.accumulate_grad_batches=3")
    assert printed.startswith("tones: 48 of 48 training utterances, 0.0")
    assert "dropped none" in printed
    assert "2 processes: trainer.devices=2, trainer.num_nodes=1" in printed
    assert figures(printed, "utterances") == ["48", "48"]
    assert re.search(r"^ +epoch 1 +epoch 2$", printed, re.MULTILINE)
    for batches, of_all, updates in zip(
        figures(printed, "batches of each process"),
        figures(printed, "batches of all"),
        figures(printed, "optimizer steps"),
        strict=True,
    ):
        assert int(of_all) == 2 * int(batches)
        assert int(updates) == -(-int(batches) // 3)
    assert all(re.fullmatch(r"\d+\.\d\d %", padding) for padding in figures(printed, "padding"))
    assert len(figures(printed, "batch-mates that are others than before")) == 1
    assert re.search(
        r"^validation: 8 utterances, .* in \d+ batches, at most \d+ of each process", printed, re.MULTILINE
    )


def test_the_report_is_of_the_plan_that_training_carries_out(
    tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = figures(report(capsys, tones), "batches of each process")
    counted = []
    loader = SpeechData.train_dataloader

    def counting(self: SpeechData) -> object:
        made = loader(self)
        counted.append(str(len(made)))
        return made

    monkeypatch.setattr(SpeechData, "train_dataloader", counting)
    train(settings_with(*TINY, *tone_corpus(tones), f"run_dir={tmp_path / 'run'}", "trainer.max_epochs=2"))
    assert counted == batches


def test_the_report_tells_the_steps_that_the_run_will_take(
    tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uneven = ["augment=[speed_perturb]", "trainer.max_epochs=4", "data.batch_seconds=5"]
    (steps,) = re.findall(r"^the whole run: (\d+) optimizer steps", report(capsys, tones, *uneven), re.MULTILINE)
    run_dir = tmp_path / "run"
    settings = resolved(*TINY, *tone_corpus(tones), f"run_dir={run_dir}", *uneven)
    assert finish(start(settings, tmp_path / "log")) == 0, (tmp_path / "log").read_text()
    assert steps_logged(run_dir) == int(steps)
    assert f" {steps} steps: " in (run_dir / "train.log").read_text()
    bounded = report(capsys, tones, *uneven, "trainer.max_steps=7")
    assert (
        "the whole run: 7 optimizer steps: trainer.max_epochs=4 or trainer.max_steps=7, whichever comes first\n"
        in bounded
    )


def test_what_is_dropped_is_counted_and_named_by_reason(tones: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = report(capsys, tones, "data.min_seconds=1.0")
    (dropped, ids) = re.findall(r"dropped (\d+): shorter than data\.min_seconds=1 \((train-.*)\)", printed)[0]
    assert int(dropped) > 5
    assert ids.count("train-") == 5
    assert ids.endswith(f"and {int(dropped) - 5} more")
    assert printed.startswith(f"tones: {48 - int(dropped)} of 48 training utterances")


def test_whatever_an_id_holds_the_report_names_it_on_one_line(
    tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "audio").symlink_to(tones / "audio")
    for split in ("train", "valid", "test"):
        text = (tones / f"{split}.jsonl").read_text()
        (tmp_path / f"{split}.jsonl").write_text(re.sub(r'"id": "(.+?)"', r'"id": "\1\\n\\u001b[31m"', text))
    printed = report(capsys, tmp_path, "data.min_seconds=1.0")
    assert "\x1b" not in printed
    assert re.search(r"^  dropped \d+: .* \(train-\d+\\n\\x1b\[31m, .* more\)$", printed, re.MULTILINE)


def test_the_command_prints_the_report_and_leaves_no_file(tones: Path, tmp_path: Path) -> None:
    before = sorted(tones.rglob("*"))
    command = [sys.executable, "-m", "asr.plan", *TINY, *tone_corpus(tones), "run_dir=run"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert figures(ended.stdout, "utterances") == ["48", "48"]
    assert list(tmp_path.iterdir()) == []
    assert sorted(tones.rglob("*")) == before


def test_a_setting_that_does_not_hold_is_one_line_and_exit_status_1(tones: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "asr.plan", *TINY, *tone_corpus(tones), "data.batch_seconds=-1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "error: data.batch_seconds must be a number greater than 0, and at most 1,000,000,000; got -1." in line


@pytest.mark.parametrize(
    ("devices", "num_nodes", "expected"),
    [(4, 1, 4), (4, 2, 8), ([0, 2], 1, 2), ("0,2", 1, 2), ("0,", 1, 1), ("3", 1, 3), (-1, 2, 2), ("auto", 1, 1)],
)
def test_processes_are_devices_times_nodes(devices: object, num_nodes: int, expected: int) -> None:
    trainer = replace(settings_with("trainer.accelerator=cpu").trainer, devices=devices, num_nodes=num_nodes)
    number, why = trainer.num_processes()
    assert number == expected
    assert f"trainer.devices={devices}" in why


def test_all_gpus_means_those_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    trainer = settings_with("trainer.accelerator=gpu", "trainer.devices=-1", "trainer.num_nodes=2").trainer
    assert trainer.num_processes() == (16, "trainer.devices=-1, trainer.num_nodes=2, and this machine has 8 GPUs")
