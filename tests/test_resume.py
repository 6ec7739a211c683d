"""A run that is killed or stopped and then resumed gives the same results as an undisturbed one."""

import importlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asr.core.checkpoint.saved import kept_checkpoints
from tests.conftest import ROOT, TINY, resolved, tone_corpus
from tests.processes import bundle, examples, finish, kill, metrics, resumptions, start, steps_logged, wait_for
from tests.refusals import mentions

EVERY_STEPS = 3
KILLS = 10
# These settings use all parts of a run's state: dropout, masks, speeds, a schedule, a moving average, incomplete
# accumulation windows, and a validation after each epoch.
RUN = [
    *TINY,
    "encoder.block.dropout=0.1",
    "augment=[speed_perturb,spec_augment]",
    "data.batch_seconds=5",
    "trainer.accumulate_grad_batches=2",
    "trainer.max_epochs=5",
    "ema.decay=0.9",
    "early_stopping.patience=8",
    "num_threads=1",
    f"checkpoint.every_steps={EVERY_STEPS}",
    "checkpoint.select=average_last",
]
TWO = ["trainer.strategy=ddp", "trainer.devices=2", "trainer.max_epochs=10"]


def config(run_dir: Path, corpus: Path, *overrides: str) -> dict[str, Any]:
    return resolved(*RUN, *tone_corpus(corpus), f"run_dir={run_dir}", *overrides)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a dozen starts, on a machine that may be slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_killed_at_ten_random_moments_is_bit_identical_to_an_undisturbed_one(
    world_size: int, tones: Path, tmp_path: Path
) -> None:
    processes = [] if world_size == 1 else TWO
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert finish(start(config(whole, tones, *processes), tmp_path / "whole.log", world_size=world_size)) == 0
    moments = random.Random(world_size)
    killed_at, resumed_from = [], []
    for attempt in range(KILLS):
        workers = f"data.num_workers={attempt % 2}"  # the number of workers must not matter
        done = steps_logged(parts) + moments.randint(0, 3)
        num_resumptions = len(resumptions(parts))
        running = start(config(parts, tones, *processes, workers), tmp_path / "parts.log", world_size=world_size)
        assert wait_for(lambda done=done: steps_logged(parts) > done, running)  # type: ignore[misc]
        time.sleep(moments.uniform(0, 0.1))
        kill(running)
        killed_at.append(steps_logged(parts))
        resumed_from += resumptions(parts)[num_resumptions:] or [(0, 1)]
    assert finish(start(config(parts, tones, *processes), tmp_path / "parts.log", world_size=world_size)) == 0
    assert bundle(parts) == bundle(whole)
    assert metrics(parts) == metrics(whole)
    assert examples(parts) == examples(whole)
    steps = [row["step"] for row in metrics(parts)]
    assert len(steps) == len(set(steps))
    resumed_from += resumptions(parts)[-1:]
    for done, (step, _) in zip(killed_at, resumed_from[1:], strict=True):
        assert done - EVERY_STEPS <= step, (killed_at, resumed_from)
    assert sum(batch > 1 for _, batch in resumed_from) >= 3, "some restarts must be within an epoch"


def schedule_by_epochs() -> None:
    """Make the learning rate depend on the epoch alone, as a schedule in asr/components/schedule could."""
    from asr.core import build

    build.build_schedule = lambda config: lambda moment: 0.5**moment.epoch  # type: ignore[assignment]


@pytest.mark.slow
def test_a_schedule_by_epochs_is_resumed_within_an_epoch(tones: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    short = ["trainer.max_epochs=2", "corpus.test=[]"]
    assert finish(start(config(whole, tones, *short), tmp_path / "log", before=schedule_by_epochs)) == 0
    running = start(config(parts, tones, *short), tmp_path / "log", before=schedule_by_epochs)
    assert wait_for(lambda: steps_logged(parts) > EVERY_STEPS + 1, running)
    kill(running)
    assert finish(start(config(parts, tones, *short), tmp_path / "log", before=schedule_by_epochs)) == 0
    assert [batch > 1 for _, batch in resumptions(parts)] == [True]
    rates = [float(row["train/learning_rate"]) for row in metrics(parts) if row["train/learning_rate"]]
    assert rates == [float(row["train/learning_rate"]) for row in metrics(whole) if row["train/learning_rate"]]
    assert rates == sorted(rates, reverse=True)
    first_of_second = len(rates) // 2
    assert [rates[0], rates[first_of_second]] == pytest.approx([2e-3, 1e-3]), (
        "the learning rate is that of the start of the epoch"
    )


def begun(run_dir: Path, corpus: Path, output: Path, *overrides: str) -> Path:
    """Start a run of two epochs, kill it within an epoch, and return its folder."""
    running = start(config(run_dir, corpus, *overrides, "trainer.max_epochs=2"), output)
    assert wait_for(lambda: steps_logged(run_dir) > EVERY_STEPS + 1, running)
    kill(running)
    return run_dir


@pytest.fixture(scope="module")
def killed(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two epochs that was killed within an epoch; tests resume copies."""
    folder = tmp_path_factory.mktemp("killed")
    return begun(folder / "run", tones, folder / "log")


def another_tokenizer(run_dir: Path, corpus: Path) -> list[str]:
    (run_dir / "fitted" / "characters.json").write_text('["f", "e", "d", "c", "b", "a", " "]')
    return []


def another_text(run_dir: Path, corpus: Path) -> list[str]:
    """Copy the corpus, reverse the text of the first utterance, and return the override that selects the copy."""
    other = run_dir.parent / "corpus"
    shutil.copytree(corpus, other)
    lines = (other / "train.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    lines[0] = json.dumps(first | {"text": first["text"][::-1]})
    (other / "train.jsonl").write_text("\n".join(lines) + "\n")
    return [f"corpus.dir={other}"]


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (another_tokenizer, r"Changed: fitted\.characters\.json: '\w+' -> '\w+'\."),
        (another_text, r"Changed: manifests\.train: '48 utterances, sha256 \w+' -> '48 utterances, sha256 \w+'\."),
        (lambda *_: ["data.batch_seconds=7", "seed=1"], r"Changed: seed: 0 -> 1; data\.batch_seconds: 5 -> 7\."),
        (lambda *_: ["trainer.max_epochs=3"], r"'resume\.allow=\[trainer\.max_epochs\]'"),
        (
            lambda *_: ["tokenizer=sentencepiece", "tokenizer.vocab_size=16"],
            r"another tokenizer.*tokenizer\.model",
        ),
        (lambda *_: ["resume.allow=[seed]"], r"resume\.allow .*world_size, .*; got 'seed'\."),
    ],
    ids=["tokenizer", "manifest", "config", "epochs", "another kind of tokenizer", "seed in resume.allow"],
)
def test_a_run_with_other_settings_is_not_resumed(
    change: Any, difference: str, killed: Path, tones: Path, tmp_path: Path
) -> None:
    run_dir = shutil.copytree(killed, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (run_dir / "checkpoints").iterdir()}
    overrides = ["trainer.max_epochs=2", *change(run_dir, tones)]
    assert finish(start(config(run_dir, tones, *overrides), tmp_path / "second.log")) == 1
    assert re.search(difference, (tmp_path / "second.log").read_text())
    assert {path: path.stat().st_mtime_ns for path in (run_dir / "checkpoints").iterdir()} == before


def test_a_checkpoint_whose_optimizer_groups_weights_otherwise_is_refused(
    killed: Path, tones: Path, tmp_path: Path
) -> None:
    run_dir = shutil.copytree(killed, tmp_path / "run")
    for path in (run_dir / "checkpoints").iterdir():
        checkpoint = torch.load(path, weights_only=True)
        groups = checkpoint["optimizer_states"][0]["param_groups"]
        groups[0]["params"].append(groups[1]["params"].pop())  # an earlier version decayed biases of attention
        torch.save(checkpoint, path)
    assert finish(start(config(run_dir, tones, "trainer.max_epochs=2"), tmp_path / "log")) == 1
    error = (tmp_path / "log").read_text().strip().splitlines()[-1]
    assert mentions(error, f"{max(killed.glob('checkpoints/*')).name} ... run_dir")


def test_settings_that_do_not_affect_the_result_may_change(killed: Path, tones: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(tones, moved / "corpus")
    shutil.copytree(killed, moved / "run")
    free = ["data.num_workers=1", "gradient_checkpointing=true", "trainer.max_epochs=2"]
    assert finish(start(config(moved / "run", moved / "corpus", *free), tmp_path / "log")) == 0
    whole = tmp_path / "whole"
    assert finish(start(config(whole, tones, "trainer.max_epochs=2"), tmp_path / "log")) == 0
    assert bundle(moved / "run") == bundle(whole)


def test_a_run_whose_lengths_an_earlier_version_rounded_resumes_at_the_start_of_its_epoch(
    killed: Path, tones: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(killed, run_dir)
    for checkpoint in kept_checkpoints(run_dir / "checkpoints"):
        content = torch.load(checkpoint.path, weights_only=True)
        content["run"]["settings"]["data"]["lengths_per_doubling"] = 16
        torch.save(content, checkpoint.path)
    before = resumptions(run_dir)
    assert finish(start(config(run_dir, tones, "trainer.max_epochs=2"), tmp_path / "log")) == 0
    [(step, batch)] = resumptions(run_dir)[len(before) :]
    assert (step > 0, batch) == (True, 1)
    assert "data.lengths_per_doubling=16" in (run_dir / "train.log").read_text()
    assert bundle(run_dir)


def write_ids(folder: Path) -> None:
    """Write the ids of the utterances of each optimizer step."""
    from asr.core.training.task import TrainingTask

    compute = TrainingTask.training_step

    def compute_and_write(task: Any, batch: Any, batch_idx: int) -> Any:
        loss = compute(task, batch, batch_idx)
        name = f"{task.current_epoch}-{task.global_step}-{task.global_rank}"
        with (folder / name).open("a" if batch_idx % task.trainer.accumulate_grad_batches else "w") as file:
            file.write("".join(f"{utterance.id}\n" for utterance in batch.utterances))
        return loss

    TrainingTask.training_step = compute_and_write  # type: ignore[method-assign]


def remove_ids_after_checkpoint(folder: Path, run_dir: Path) -> None:
    """Remove the ids of steps that the run will repeat when it resumes."""
    saved = kept_checkpoints(run_dir / "checkpoints")[-1].step
    for path in folder.iterdir():
        if int(path.name.split("-")[1]) >= saved:
            path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [(1, 2, 1), (1, 2, 2), (2, 1, 1)], ids=str)
def test_a_different_number_of_processes_continues_the_epoch_if_permitted(
    numbers: tuple[int, int, int], tones: Path, tmp_path: Path
) -> None:
    """The run is killed twice within an epoch; every epoch has each utterance exactly once."""
    run_dir, ids = tmp_path / "run", tmp_path / "ids"
    ids.mkdir()
    small = ["data.max_utterances=2", "trainer.max_epochs=2", "checkpoint.every_steps=1"]
    for part, world_size in enumerate(numbers):
        distributed = ["trainer.strategy=ddp", "trainer.devices=2"] if world_size == 2 else []
        settings = config(run_dir, tones, *small, *distributed)
        if part > 0 and numbers[part - 1] != world_size:
            output = tmp_path / f"refused{part}.log"
            assert finish(start(settings, output, world_size=world_size)) == 1
            log = output.read_text()
            assert log.count("error: ") == 1, log
            assert f"world_size: {numbers[part - 1]} -> {world_size}" in log
            assert "resume.allow=[world_size]" in log
        allowed = config(run_dir, tones, *small, *distributed, "resume.allow=[world_size]")
        done, output = steps_logged(run_dir), tmp_path / f"{part}.log"
        running = start(allowed, output, world_size=world_size, before=partial(write_ids, ids))
        if part < 2:
            assert wait_for(lambda done=done: steps_logged(run_dir) > done + 2, running)  # type: ignore[misc]
            kill(running)
            remove_ids_after_checkpoint(ids, run_dir)
        else:
            assert finish(running) == 0, output.read_text()
        changed = part > 0 and numbers[part - 1] != world_size
        assert ("no longer bit-identical" in output.read_text()) == changed
    rows = metrics(run_dir)
    assert [int(row["step"]) for row in rows] == list(range(1, 1 + len(rows)))
    for epoch in range(2):
        seen = [name for path in ids.glob(f"{epoch}-*") for name in path.read_text().split()]
        assert sorted(seen) == sorted(f"train-{number}" for number in range(48)), epoch
    rates = [float(row["train/learning_rate"]) for row in rows]
    assert min(rates[len(rates) // 2 :]) == rates[-1], "the schedule ends with the run"
    assert rates[-1] < 0.1 * max(rates)


def test_two_training_runs_cannot_use_one_folder(tones: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    first = start(config(run_dir, tones, "trainer.max_epochs=100"), tmp_path / "first.log")
    assert wait_for(lambda: steps_logged(run_dir) > 2, first)
    assert finish(start(config(run_dir, tones, "trainer.max_epochs=100"), tmp_path / "second.log")) == 1
    assert mentions((tmp_path / "second.log").read_text(), f"{run_dir} ... another process")
    before = steps_logged(run_dir)
    assert wait_for(lambda: steps_logged(run_dir) > before, first), "the first training continues"
    kill(first)


def test_a_run_that_stopped_early_is_not_continued(tones: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    impatient = ["early_stopping.patience=1", "optimizer.lr=0", "trainer.max_epochs=9"]
    for attempt in ("first", "second"):
        assert finish(start(config(run_dir, tones, *impatient), tmp_path / f"{attempt}.log")) == 0
        assert re.search(r"stopped at step \d+ of \d+: no better WER", (tmp_path / f"{attempt}.log").read_text())
        assert sum(row["valid/wer"] != "" for row in metrics(run_dir)) == 2


@pytest.mark.slow
def test_each_job_of_a_multirun_has_its_own_folder(tones: Path, tmp_path: Path) -> None:
    short = ["trainer.max_epochs=1", "data.max_utterances=24", "run_dir=runs", "ema.decay=null"]
    command = [sys.executable, "-m", "asr.train", "--multirun", "seed=1,2", *RUN, *tone_corpus(tones)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [*command, *short], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    jobs = sorted(path for path in (tmp_path / "runs").iterdir() if path.name != "multirun.yaml")
    assert [job.name for job in jobs] == ["0", "1"], "a long list of overrides is not part of the folder's name"
    assert all((job / "results.json").is_file() for job in jobs)
    starts = [(job / "train.log").read_text().count("training utterances in the manifests") for job in jobs]
    assert starts == [1, 1], "the log of a job has only its own lines"


def die_after_the_first_checkpoint() -> None:
    """Kill this process when it has written a checkpoint."""
    from asr.core.training import checkpointing as saving

    write = saving.write_whole

    def write_and_die(*arguments: Any) -> None:
        write(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    saving.write_whole = write_and_die


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "how",
    [
        ["trainer.max_epochs=2", "ema.decay=null"],
        ["trainer.max_epochs=-1", "trainer.max_steps=13", "trainer.check_val_every_n_epoch=2"],
        pytest.param(["trainer.max_epochs=2", "+trainer.val_check_interval=4"], marks=pytest.mark.slow),
        pytest.param(
            [
                "trainer.max_epochs=1",
                "trainer.check_val_every_n_epoch=null",
                "+trainer.val_check_interval=3",
                "trainer.accumulate_grad_batches=1",
            ],
            marks=pytest.mark.slow,
        ),
    ],
    ids=[
        "validated at the end of an epoch",
        "ending within an epoch",
        "validated within an epoch",
        "validated every three batches",
    ],
)
def test_a_run_resumes_from_every_checkpoint_that_it_writes(how: list[str], tones: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    always = [*how, "checkpoint.every_steps=1"]
    assert finish(start(config(whole, tones, *always), tmp_path / "whole.log")) == 0
    restarts = 0
    deadly = die_after_the_first_checkpoint
    while (status := finish(start(config(parts, tones, *always), tmp_path / "log", before=deadly))) != 0:
        assert status == -signal.SIGKILL, (tmp_path / "log").read_text()
        restarts += 1
    assert bundle(parts) == bundle(whole)
    assert metrics(parts) == metrics(whole)
    assert examples(parts) == examples(whole)
    assert restarts >= len(metrics(whole))


def test_checkpoints_can_be_due_after_minutes_instead_of_steps(tones: Path, tmp_path: Path) -> None:
    impatient = ["checkpoint.every_steps=1000", "checkpoint.every_minutes=1e-9", "trainer.max_epochs=1"]
    deadly = die_after_the_first_checkpoint
    assert finish(start(config(tmp_path / "run", tones, *impatient), tmp_path / "log", before=deadly)) < 0
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step=1.ckpt"]


def write_weights(folder: Path) -> None:
    """Write the weights after each optimizer step."""
    from asr.core.training.task import TrainingTask

    def write(task: Any, *_: Any) -> None:
        weights = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
        torch.save(weights, folder / f"{task.global_step}.pt")

    TrainingTask.on_train_batch_end = write  # type: ignore[method-assign]


def test_the_bundle_contains_the_moving_average(tones: Path, tmp_path: Path) -> None:
    once = ["trainer.max_epochs=1", "checkpoint.select=last", "trainer.accumulate_grad_batches=1"]
    (tmp_path / "weights").mkdir()
    before = partial(write_weights, tmp_path / "weights")
    assert finish(start(config(tmp_path / "run", tones, *once), tmp_path / "log", before=before)) == 0
    steps = len(list((tmp_path / "weights").iterdir()))
    average: dict[str, Any] = {}
    for step in range(1, steps + 1):
        weights = torch.load(tmp_path / "weights" / f"{step}.pt")
        for name, weight in weights.items():
            average[name] = 0.9 * average[name] + 0.1 * weight.double() if step > 1 else weight.double()
    averaged = load_file(tmp_path / "run" / "bundle" / "weights.safetensors")
    assert steps > 5
    for name, weight in averaged.items():
        torch.testing.assert_close(weight.double(), average[name], rtol=1e-5, atol=1e-6, msg=name)


def die_in(where: str) -> None:
    """Kill this process when it calls the function that `where` names."""
    module, name = where.rsplit(".", 1)
    owner: Any = importlib.import_module(module) if module.startswith("asr.") else {"os": os, "shutil": shutil}[module]

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, die)


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("asr.core.run.folder.save_fitted", marks=pytest.mark.slow),  # killed after the tokenizer is fitted
        pytest.param("asr.core.run.folder.save_config", marks=pytest.mark.slow),
        # The new checkpoint is written, but no older one is removed.
        pytest.param("asr.core.training.checkpointing.superfluous", marks=pytest.mark.slow),
        pytest.param(
            "asr.core.objective.word_validation.count_errors", marks=pytest.mark.slow
        ),  # killed in the first validation
        pytest.param("asr.core.objective.outcome.make_bundle", marks=pytest.mark.slow),
        "asr.core.checkpoint.bundle._swap",  # the bundle is complete beside its final path
        pytest.param("asr.core.objective.outcome.test_bundle", marks=pytest.mark.slow),
        # results.json is being written
        pytest.param("asr.core.objective.outcome.write_whole_text", marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_in_any_phase_gives_bit_identical_results(where: str, tones: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    short = ["trainer.max_epochs=1", "checkpoint.keep=1"]
    assert finish(start(config(whole, tones, *short), tmp_path / "whole.log")) == 0
    killed = start(config(parts, tones, *short), tmp_path / "log", before=partial(die_in, where))
    assert finish(killed) == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert finish(start(config(parts, tones, *short), tmp_path / "log")) == 0, (tmp_path / "log").read_text()
    assert bundle(parts) == bundle(whole)
    assert metrics(parts) == metrics(whole)
    assert examples(parts) == examples(whole)
    assert (parts / "results.json").read_bytes() == (whole / "results.json").read_bytes()
    left = {path.name for path in parts.rglob("*") if path.is_file()}
    assert {name for name in left if not name.startswith("events.")} == {
        path.name for path in whole.rglob("*") if path.is_file() and not path.name.startswith("events.")
    }
