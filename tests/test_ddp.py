"""With every launcher, two processes write one run folder; their validation results equal those of one process."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from asr.core.data.manifest import read_manifest, write_manifest
from asr.core.training.task import TrainingTask
from tests.conftest import ROOT, TINY, resolved, tone_corpus
from tests.processes import finish, metrics, start

STRATEGIES = ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)]
SHORT = ["trainer.max_epochs=1", "schedule.warmup_steps=4", "trainer.strategy=ddp", "trainer.devices=2", "run_dir=run"]
TASKS = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_JOB_NAME": "train", "SLURM_JOB_ID": "4711"}


def lightning(training: list[str]) -> list[tuple[list[str], dict[str, str]]]:
    """Return the command `python -m asr.train`; Lightning starts the second process."""
    return [([sys.executable, *training], {})]


def torchrun(training: list[str]) -> list[tuple[list[str], dict[str, str]]]:
    """Return the command `torchrun -m asr.train`."""
    return [([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *training], {})]


def srun(training: list[str]) -> list[tuple[list[str], dict[str, str]]]:
    """Return the commands that `srun python -m asr.train` runs, with the environment variables of SLURM's tasks."""
    ranks = [{"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NODEID": "0"} for rank in "01"]
    return [([sys.executable, *training], {**TASKS, **rank, "MASTER_ADDR": "127.0.0.1"}) for rank in ranks]


@pytest.mark.apps
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "launch", [lightning, pytest.param(torchrun, marks=pytest.mark.slow), pytest.param(srun, marks=pytest.mark.slow)]
)
def test_two_processes_leave_only_one_run_folder(launch: Any, strategy: str, tones: Path, tmp_path: Path) -> None:
    """Training starts in an empty folder, as it does for a user."""
    training = ["-m", "asr.train", *TINY, *tone_corpus(tones), *SHORT, f"trainer.strategy={strategy}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(command, cwd=tmp_path, env=environment | variables, stderr=subprocess.PIPE, text=True)
        for command, variables in launch(training)
    ]
    printed = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), printed
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    run_dir = tmp_path / "run"
    folders = ["bundle", "checkpoints", "fitted", "tensorboard"]
    files = [
        "config.yaml",
        "counts.json",
        "events.jsonl",
        "examples.jsonl",
        "metrics.csv",
        "report.html",
        "results.json",
        "train.log",
    ]
    assert sorted(path.name for path in run_dir.iterdir()) == sorted([*folders, *files])
    assert len(list(run_dir.glob("tensorboard/events.*"))) == 1
    log = (run_dir / "train.log").read_text()
    assert log.count("training utterances") == 1, "each message is logged once"
    assert "".join(printed).count("training utterances") == 1


OPEN_TO_THE_END = pytest.mark.xfail(reason="a reference to the group remains, so Gloo's threads run until Python exits")
TOO_HOT = ["run_dir=other", "optimizer.lr=1000", "optimizer.weight_decay=1000"]  # makes the gradient non-finite


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=[pytest.mark.slow, OPEN_TO_THE_END])])
@pytest.mark.parametrize(
    ("overrides", "status"),
    [([], 0), pytest.param(TOO_HOT, 1, marks=pytest.mark.slow)],
    ids=["successful", "ended by an error"],
)
def test_every_process_closes_its_process_group_before_python_exits(
    overrides: list[str], status: int, strategy: str, tones: Path, tmp_path: Path
) -> None:
    """Gloo's threads may abort a process that exits before its process group is closed and its tensors are released."""
    program = tmp_path / "program.py"
    program.write_text("""
import atexit, os, pathlib
import torch.distributed as dist
from asr.train import main
if __name__ == "__main__":
    def leave():
        threads = [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
        is_left = not dist.is_initialized() and not any("gloo" in thread for thread in threads)
        pathlib.Path(f"{os.environ['RANK']}-{is_left}").touch()
    atexit.register(leave)  # what is registered first runs last
    main()
""")
    training = [str(program), *TINY, *tone_corpus(tones), *SHORT, f"trainer.strategy={strategy}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    [(command, _)] = torchrun([*training, *overrides])
    assert subprocess.run(command, cwd=tmp_path, env=environment, timeout=240).returncode == status
    assert sorted(path.name for path in tmp_path.glob("?-*")) == ["0-True", "1-True"]


def test_two_processes_give_the_validation_results_of_one_process(tones: Path, tmp_path: Path) -> None:
    """The learning rate is 0, and there are no batch statistics, so that both runs have equal weights."""
    still = ["optimizer.lr=0", "encoder/block/norm=layer_norm", "trainer.max_epochs=1", "num_threads=1"]
    results = []
    for world_size in (1, 2):
        distributed = ["trainer.strategy=ddp", f"trainer.devices={world_size}"] if world_size > 1 else []
        run_dir = tmp_path / str(world_size)
        settings = resolved(*TINY, *tone_corpus(tones), *still, *distributed, f"run_dir={run_dir}")
        assert finish(start(settings, tmp_path / "log", world_size=world_size)) == 0, (tmp_path / "log").read_text()
        last = metrics(run_dir)[-1]
        results.append([float(last[name]) for name in ("valid/wer", "valid/loss", "valid/blank_ratio")])
    assert results[1] == pytest.approx(results[0], rel=1e-6)


def count_collectives(folder: Path) -> None:
    """Make a process write, after each training batch but the first, the collectives since the batch before."""
    calls: list[str] = []
    for name in ("all_reduce", "barrier", "broadcast", "all_gather_object", "broadcast_object_list"):
        real = getattr(dist, name)

        def counting(*given: Any, _name: str = name, _real: Any = real, **options: Any) -> Any:
            is_default = options.get("group") in (None, dist.group.WORLD)
            calls.append(_name if is_default else f"{_name} of {given[0].device} in another group")
            return _real(*given, **options)

        setattr(dist, name, counting)
    begin = TrainingTask.on_train_batch_start

    def start_of_batch(self: TrainingTask, batch: Any, batch_idx: int) -> None:
        if batch_idx > 0:
            with (folder / f"collectives-{self.global_rank}.jsonl").open("a") as file:
                file.write(json.dumps(sorted(calls)) + "\n")
        calls.clear()
        begin(self, batch, batch_idx)

    TrainingTask.on_train_batch_start = start_of_batch  # type: ignore[method-assign]


@pytest.mark.parametrize(("strategy", "num_sums"), [("ddp", 1), pytest.param("fsdp", 2, marks=pytest.mark.slow)])
def test_a_step_sums_once_compares_flags_once_and_has_no_barrier(
    strategy: str, num_sums: int, tones: Path, tmp_path: Path
) -> None:
    """DDP's and FSDP's own communication is not counted; with fsdp, the gradient's norm is another sum.

    On a GPU a barrier or a broadcast of Lightning would wait for the device. The flags never leave the CPU.
    """
    still = ["encoder/block/norm=layer_norm", "num_threads=1", "corpus.test=[]", "trainer.log_every_n_steps=50"]
    short = ["trainer.max_steps=4", "data.batch_seconds=3", f"trainer.strategy={strategy}", "trainer.devices=2"]
    settings = resolved(*TINY, *tone_corpus(tones), *still, *short, f"run_dir={tmp_path / 'run'}")
    running = start(settings, tmp_path / "log", world_size=2, before=partial(count_collectives, tmp_path))
    assert finish(running) == 0, (tmp_path / "log").read_text()
    expected = [*["all_reduce"] * num_sums, "all_reduce of cpu in another group"]
    for rank in (0, 1):
        lines = (tmp_path / f"collectives-{rank}.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == [expected] * 3


SHIPPED = re.findall(r"^ *strategy: (?!auto)(\w+)", "".join(map(Path.read_text, ROOT.glob("conf/trainer/*"))), re.M)


@pytest.mark.parametrize(
    "strategy", [pytest.param(name, marks=[pytest.mark.slow] * (name == "ddp")) for name in sorted(set(SHIPPED))]
)
def test_a_process_without_a_validation_batch_does_not_stop_the_others(
    strategy: str, tones: Path, tmp_path: Path
) -> None:
    """The validation has one batch for two processes; with several blocks, their order matters to fsdp."""
    write_manifest(tmp_path / "one.jsonl", read_manifest(tones / "valid.jsonl")[:1])
    short = ["encoder.num_layers=3", "trainer.max_epochs=2", "data.batch_seconds=30", "num_threads=1", "corpus.test=[]"]
    distributed = [f"trainer.strategy={strategy}", "trainer.devices=2", f"corpus.valid=[{tmp_path / 'one.jsonl'}]"]
    settings = resolved(*TINY, *tone_corpus(tones), *short, *distributed, f"run_dir={tmp_path / 'run'}")
    assert finish(start(settings, tmp_path / "log", world_size=2)) == 0, (tmp_path / "log").read_text()
    assert len([row for row in metrics(tmp_path / "run") if row["valid/wer"]]) == 2
