"""After real faults during training, little work is lost, the error is clear, and no process hangs."""

import contextlib
import errno
import multiprocessing
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import soundfile
import torch

from asr.apps.doctor import memory
from asr.apps.runs.summary import summarize
from asr.core.checkpoint.saved import kept_checkpoints
from asr.core.data.manifest import read_manifest
from asr.core.run.events import read_history
from asr.core.training.distributed import STARTED_BY_FIRST, stop_others
from asr.core.training.fit import fit
from asr.errors import InputError
from tests.conftest import PATIENCE, ROOT, TINY, resolved, settings_with, tone_corpus
from tests.processes import bundle, finish, kill, metrics, resumptions, start, steps_logged, wait_for
from tests.refusals import mentions, refused
from tests.tones import sentences, write_corpus

RUN = [
    *TINY,
    "data.batch_seconds=5",
    "trainer.max_epochs=2",
    "num_threads=1",
    "checkpoint.every_steps=3",
    "optimizer.lr=1e-3",
]
TWO = ["trainer.strategy=ddp", "trainer.devices=2"]


def config(run_dir: Path, corpus: Path, *overrides: str) -> dict[str, Any]:
    return resolved(*RUN, *tone_corpus(corpus), f"run_dir={run_dir}", *overrides)


def error(output: Path) -> str:
    """Return the error line of a training run; there must be exactly one, and no traceback."""
    text = output.read_text()
    assert "Traceback" not in text, text
    lines = [line for line in text.splitlines() if " error: " in line]
    assert len(lines) == 1, text
    return lines[0]


def bad_corpus(tones: Path, folder: Path) -> Path:
    """Copy the corpus of tones, so that a test can damage its audio; return the folder."""
    shutil.copytree(tones / "audio", folder / "audio")
    for split in ("train", "valid", "test"):
        text = (tones / f"{split}.jsonl").read_text().replace(str(tones), str(folder))
        (folder / f"{split}.jsonl").write_text(text)
    return folder


@pytest.fixture(scope="module")
def whole(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    assert finish(start(config(folder / "run", tones), folder / "log")) == 0, (folder / "log").read_text()
    return folder / "run"


def half(run_dir: Path, corpus: Path, output: Path, *overrides: str) -> list[Path]:
    """Kill a run after its sixth step; return its checkpoints, newest first."""
    running = start(config(run_dir, corpus, *overrides), output)
    assert wait_for(lambda: steps_logged(run_dir) > 6, running)
    kill(running)
    return [checkpoint.path for checkpoint in reversed(kept_checkpoints(run_dir / "checkpoints"))]


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def flip_a_bit(path: Path) -> None:
    with zipfile.ZipFile(path) as file:
        largest = max(file.infolist(), key=lambda member: member.file_size)
    content = bytearray(path.read_bytes())
    content[largest.header_offset + largest.file_size // 2] ^= 16  # a byte in the middle of the largest file
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, pytest.param(flip_a_bit, marks=pytest.mark.slow)])
def test_a_damaged_newest_checkpoint_is_named_and_the_previous_one_is_used(
    damage: Any, whole: Path, tones: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    newest, before, *_ = half(run_dir, tones, tmp_path / "log")
    damage(newest)
    assert finish(start(config(run_dir, tones), tmp_path / "log")) == 0
    log = (run_dir / "train.log").read_text()
    assert re.search(rf"{re.escape(str(newest))} is damaged \(.+\): renamed", log)
    assert f": {before}" in log
    assert newest.with_name(newest.name + ".damaged").is_file()
    assert bundle(run_dir) == bundle(whole)
    assert metrics(run_dir) == metrics(whole)


def test_a_run_refused_because_of_other_settings_does_not_change_its_damaged_checkpoint(
    tones: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    newest, *_ = half(run_dir, tones, tmp_path / "log")
    truncate(newest)
    assert finish(start(config(run_dir, tones, "seed=7"), tmp_path / "second.log")) == 1
    assert mentions(error(tmp_path / "second.log"), f"{run_dir} ... seed: 0 -> 7")
    assert newest.is_file()


def test_if_all_checkpoints_are_damaged_nothing_is_trained_or_removed(tones: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    checkpoints = half(run_dir, tones, tmp_path / "log")
    for path in checkpoints:
        truncate(path)
    assert finish(start(config(run_dir, tones), tmp_path / "second.log")) == 1
    assert mentions(error(tmp_path / "second.log"), f"{run_dir} ... intact checkpoint")
    assert all(path.is_file() for path in checkpoints)


class _Malicious:
    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> Any:
        return (Path.touch, (self.victim,))


def test_a_checkpoint_that_would_execute_code_is_refused(tones: Path, tmp_path: Path) -> None:
    run_dir, victim = tmp_path / "run", tmp_path / "victim"
    newest, *_ = half(run_dir, tones, tmp_path / "log")
    torch.save({"state_dict": _Malicious(victim)}, newest)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(newest, weights_only=True)
    assert finish(start(config(run_dir, tones), tmp_path / "second.log")) == 1
    assert mentions(error(tmp_path / "second.log"), f"{newest} ... without running code")
    assert not victim.exists()


def limit_file_size(num_bytes: int) -> None:
    """Limit the size of files, so that this process gets the errors of a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def test_a_full_disk_destroys_no_existing_file(whole: Path, tones: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    checkpoints = half(run_dir, tones, tmp_path / "log")
    contents = {path: path.read_bytes() for path in checkpoints}
    too_small = partial(limit_file_size, min(len(content) for content in contents.values()) // 2)
    assert finish(start(config(run_dir, tones), tmp_path / "second.log", before=too_small)) == 1
    assert mentions(error(tmp_path / "second.log"), "disk ... checkpoint ... [Errno 27] File too large")
    assert {path: path.read_bytes() for path in sorted((run_dir / "checkpoints").iterdir())} == contents
    assert finish(start(config(run_dir, tones), tmp_path / "log")) == 0
    assert bundle(run_dir) == bundle(whole)
    assert metrics(run_dir) == metrics(whole)


def test_a_full_disk_ends_two_processes_with_a_one_line_error(tones: Path, tmp_path: Path) -> None:
    processes = start(
        config(tmp_path / "run", tones, *TWO), tmp_path / "log", world_size=2, before=partial(limit_file_size, 100_000)
    )
    assert finish(processes) == 1
    assert mentions(error(tmp_path / "log"), "disk ... checkpoint")


def test_a_log_on_a_full_disk_ends_a_run_with_a_one_line_error(tones: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("train.log", "events.jsonl"):
        (tmp_path / "run" / name).symlink_to("/dev/full")
    assert finish(start(config(tmp_path / "run", tones), tmp_path / "log")) == 1
    assert mentions(error(tmp_path / "log"), "the disk")


def fill_the_disk_of_tensorboard() -> None:
    """Make TensorBoard's thread fail to write its file."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    RecordWriter.write = fail


def test_a_full_disk_in_the_thread_of_tensorboard_ends_a_run_with_a_one_line_error(tones: Path, tmp_path: Path) -> None:
    running = start(config(tmp_path / "run", tones), tmp_path / "log", before=fill_the_disk_of_tensorboard)
    assert finish(running) == 1
    assert mentions(error(tmp_path / "log"), "the disk")


def break_the_code_at_step_2() -> None:
    """Make the training fail with an error that asr does not expect."""
    from asr.core.training.task import TrainingTask

    step = TrainingTask.training_step

    def fail(self: TrainingTask, *arguments: Any) -> Any:
        if self.trainer.global_step == 2:
            raise ZeroDivisionError("7 / 0")
        return step(self, *arguments)

    TrainingTask.training_step = fail  # type: ignore[method-assign]


def test_an_unexpected_error_ends_the_log_and_is_the_state_of_the_run(tones: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert finish(start(config(run_dir, tones), tmp_path / "log", before=break_the_code_at_step_2)) == 1
    assert "Traceback" in (tmp_path / "log").read_text()
    for text in ((run_dir / "train.log").read_text().splitlines()[-1], summarize(run_dir, "run").state):
        assert mentions(text, "ZeroDivisionError: 7 / 0")


def children(pid: int | None) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_worker_that_dies_ends_the_training_with_a_one_line_error(tones: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    running = start(config(run_dir, tones, "data.num_workers=2", "trainer.max_epochs=50"), tmp_path / "log")
    assert wait_for(lambda: steps_logged(run_dir) > 3, running)
    assert wait_for(lambda: len(children(running[0].pid)) > 0, running)
    os.kill(children(running[0].pid)[0], signal.SIGKILL)
    assert finish(running) == 1
    assert mentions(error(tmp_path / "log"), "processes ... audio")


def test_stopping_workers_does_not_raise_torchs_error_about_dead_workers() -> None:
    trainer, context = SimpleNamespace(strategy=SimpleNamespace(launcher=None)), multiprocessing.get_context("fork")
    workers = [context.Process(target=time.sleep, args=(60,)) for _ in range(3)]
    for worker in workers:
        worker.start()

    def complain(*_: object) -> None:
        raise RuntimeError("DataLoader worker is killed by signal: Killed.")

    before = signal.signal(signal.SIGCHLD, complain)
    try:
        stop_others(cast(Any, trainer))
        assert signal.getsignal(signal.SIGCHLD) is complain
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert [worker.exitcode for worker in workers] == [-signal.SIGKILL] * 3


def test_the_thread_that_watches_workers_kills_them_without_waiting_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting could raise torch's error in the main thread, where the watching thread cannot suppress it."""
    done: list[str] = []
    worker = SimpleNamespace(kill=lambda: done.append("killed"), join=lambda: done.append("joined"))
    monkeypatch.setattr(multiprocessing, "active_children", lambda: [worker])
    trainer = cast(Any, SimpleNamespace(strategy=SimpleNamespace(launcher=None)))
    watch = threading.Thread(target=stop_others, args=(trainer,))
    watch.start()
    watch.join()
    assert done == ["killed"]


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_files_that_become_unreadable_are_skipped_counted_and_named(
    world_size: int, tones: Path, tmp_path: Path
) -> None:
    """Each batch of a rank has one utterance, so that some batches have no readable utterance."""
    corpus, run_dir = bad_corpus(tones, tmp_path / "corpus"), tmp_path / "run"
    processes = TWO if world_size > 1 else []
    small = ["data.max_utterances=1", "data.max_bad_fraction=0.2", "augment=[spec_augment]"]
    running = start(config(run_dir, corpus, *processes, *small), tmp_path / "log", world_size=world_size)
    assert wait_for(lambda: steps_logged(run_dir) > 1, running)
    spoilt = {f"train-{number}" for number in range(0, 48, 8)}
    for name in spoilt:
        (corpus / "audio" / f"{name}.flac").write_bytes(b"no longer audio")
    assert finish(running) == 0, (tmp_path / "log").read_text()
    log = (run_dir / "train.log").read_text()
    named = re.findall(r"epoch (\d): skipped '(train-\d+)': .*\.flac", log)
    assert {name for epoch, name in named if epoch == "2"} == spoilt
    assert len(named) == len(set(named)), "each file is named once per epoch"
    last = [row for row in metrics(run_dir) if row["train/skipped_utterances"]][-1]
    assert float(last["train/skipped_utterances"]) == len(spoilt)


def test_files_with_extreme_samples_are_skipped_in_training_and_validation(tones: Path, tmp_path: Path) -> None:
    corpus, run_dir = bad_corpus(tones, tmp_path / "corpus"), tmp_path / "run"
    for name in ("train-7", "valid-3"):
        path = corpus / "audio" / f"{name}.flac"
        samples, sample_rate = soundfile.read(path, dtype="float32")
        soundfile.write(path, 1e30 * samples, sample_rate, format="WAV", subtype="FLOAT")
    settings = config(run_dir, corpus, "trainer.max_epochs=1", "data.max_bad_fraction=0.1")
    assert finish(start(settings, tmp_path / "log")) == 0, (tmp_path / "log").read_text()
    log = (run_dir / "train.log").read_text()
    assert re.findall(r"(\w+ ?\d*): skipped '(.+)': .*: samples must lie between", log) == [
        ("epoch 1", "train-7"),
        ("validation", "valid-3"),
    ]


def test_a_batch_with_a_bad_file_trains_like_a_batch_without_it(tones: Path, tmp_path: Path) -> None:
    """The file is damaged before the start; the first loss is the loss per token of the other utterances."""
    from tests.test_global_loss import planned

    corpus = bad_corpus(tones, tmp_path / "corpus")
    settings = config(tmp_path / "run", corpus, "trainer.max_steps=1", "data.max_bad_fraction=1")
    model, examples = planned(settings, corpus, 1)
    first = examples[0][0]
    Path(first[0].utterance.audio_filepath).write_bytes(b"not audio")
    assert finish(start(settings, tmp_path / "log")) == 0, (tmp_path / "log").read_text()

    from asr.core.data.batch import collate

    left = collate(first[1:])
    losses = model.head.losses(model(left.features, left.feature_lengths), left.targets)["loss"]
    expected = float(losses.detach().sum()) / int(left.token_lengths.sum())
    assert float(metrics(tmp_path / "run")[0]["train/loss"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("world_size", [1, 2])
def test_more_unreadable_files_than_max_bad_fraction_stop_the_training(
    world_size: int, tones: Path, tmp_path: Path
) -> None:
    corpus = bad_corpus(tones, tmp_path / "corpus")
    for number in range(4):
        (corpus / "audio" / f"train-{number}.flac").write_bytes(b"not audio")
    processes = TWO if world_size > 1 else []
    # At most 2.4 of the 48 files may be bad.
    settings = config(tmp_path / "run", corpus, *processes, "data.max_bad_fraction=0.05")
    assert finish(start(settings, tmp_path / "log", world_size=world_size)) == 1
    assert mentions(error(tmp_path / "log"), "2.4 ... data.max_bad_fraction")


def step_too_far() -> None:
    """Make all weights extreme after a step, as with a learning rate of 1e18, which no setting allows."""
    step = torch.optim.AdamW.step

    def far(self: torch.optim.AdamW, *args: Any, **kwargs: Any) -> Any:
        loss = step(self, *args, **kwargs)
        for weight in (weight for group in self.param_groups for weight in group["params"]):
            weight.data = 1e18 * weight.sign().detach()
        return loss

    torch.optim.AdamW.step = far  # type: ignore[method-assign]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_non_finite_loss_names_its_utterances_and_stores_the_batch(
    world_size: int, tones: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    processes = TWO if world_size > 1 else []
    settings = config(run_dir, tones, *processes)
    assert finish(start(settings, tmp_path / "log", world_size=world_size, before=step_too_far)) == 1
    line = error(tmp_path / "log")
    ids = {utterance.id for utterance in read_manifest(tones / "train.jsonl")}
    named = set(re.findall(r"train-\d+", line))
    assert named
    assert named <= ids
    paths = sorted((run_dir / "faults").iterdir())
    batch = torch.load(paths[0], weights_only=True)
    assert batch["features"].shape[0] == len(batch["ids"]) == len(batch["losses"])
    assert not batch["losses"].isfinite().all()


def test_the_log_has_one_line_per_record_for_any_id(tones: Path, tmp_path: Path) -> None:
    """The log names ids of dropped and skipped utterances, and of utterances with non-finite losses."""
    corpus, run_dir = bad_corpus(tones, tmp_path / "corpus"), tmp_path / "run"
    manifest = corpus / "train.jsonl"
    manifest.write_text(re.sub(r'"id": "(.+?)"', r'"id": "\1\\n\\u001b[31m"', manifest.read_text()))
    assert "\n\x1b[31m" in read_manifest(manifest)[0].id
    for number in range(0, 48, 2):
        path = corpus / "audio" / f"train-{number}.flac"
        samples, sample_rate = soundfile.read(path, dtype="float32")
        # Only decoding reveals the fault.
        soundfile.write(path, 1e30 * samples, sample_rate, format="WAV", subtype="FLOAT")
    settings = config(run_dir, corpus, "data.min_seconds=1.0", "data.max_bad_fraction=1")
    assert finish(start(settings, tmp_path / "log", before=step_too_far)) == 1
    shown = r"train-\d+\\n\\x1b\[31m"
    for text, head in (
        ((tmp_path / "log").read_text(), r"\d\d:\d\d:\d\d "),
        ((run_dir / "train.log").read_text(), r"\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ "),
    ):
        assert "\x1b" not in text
        assert [line for line in text.splitlines() if not re.match(head, line)] == []
        assert re.search(rf"dropped \d+ of 48 training utterances: .*\({shown}, ", text)
        assert re.search(rf"epoch 1: skipped '{shown}': ", text)
        assert re.search(rf"the loss is not finite for \d+ examples: {shown}", text)


def limit_memory(more_bytes: int) -> None:
    """Limit the memory of this process to its current size plus `more_bytes`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def limit_memory_of_the_trial() -> None:
    """Limit memory only while the largest batches are tried, because startup needs more memory on some machines."""
    trial = memory.try_largest

    def limited(*arguments: Any) -> None:
        limit_memory(400 * 2**20)
        trial(*arguments)

    memory.try_largest = limited


def test_a_batch_that_does_not_fit_in_memory_is_found_before_the_first_step_and_described(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", {"train": sentences(40, seed=1, words=(20, 30)), "valid": sentences(2, seed=2)})
    large = ["data.batch_seconds=600", "encoder.dim=256", "encoder.num_layers=8", "corpus.test=[valid.jsonl]"]
    settings = config(tmp_path / "run", tmp_path / "corpus", *large)
    assert finish(start(settings, tmp_path / "log", before=limit_memory_of_the_trial)) == 1
    line = error(tmp_path / "log")
    assert re.search(
        r"a batch must fit into memory; got \d+ utterances x \d+ frames \([\d.]+ s each, \d+ s in all, \d+ tokens\)",
        line,
    )
    assert "data.batch_seconds" in line
    assert steps_logged(tmp_path / "run") == 0


def without_the_trial() -> None:
    memory.try_largest = lambda *_: None  # type: ignore[assignment]


def test_trying_the_largest_batch_does_not_change_the_run(whole: Path, tones: Path, tmp_path: Path) -> None:
    """Parameters, buffers, optimizer and random state are bit-identical to those of a run without the trial."""
    settings = config(tmp_path / "run", tones)
    assert finish(start(settings, tmp_path / "log", before=without_the_trial)) == 0
    assert bundle(tmp_path / "run") == bundle(whole)
    assert metrics(tmp_path / "run") == metrics(whole)


@pytest.mark.parametrize(
    ("signum", "status"),
    [
        (signal.SIGTERM, 143),
        *(pytest.param(*slow, marks=pytest.mark.slow) for slow in ((signal.SIGINT, 130), (signal.SIGUSR1, 138))),
    ],
    ids=str,
)
def test_a_signal_saves_a_checkpoint_and_stops_the_training_with_the_exit_status_of_the_signal(
    signum: int, status: int, whole: Path, tones: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    rarely = "checkpoint.every_steps=1000"
    running = start(config(run_dir, tones, rarely), tmp_path / "log")
    assert wait_for(lambda: steps_logged(run_dir) > 2, running)
    assert running[0].pid is not None
    os.kill(running[0].pid, signum)
    assert finish(running) == status
    done = steps_logged(run_dir)
    end = (run_dir / "train.log").read_text().splitlines()[-1]
    stopped = re.search(rf"stopped by {signal.Signals(signum).name} at step {done} of \d+", end)
    assert stopped
    assert read_history(run_dir / "events.jsonl").early_end == stopped[0]
    assert finish(start(config(run_dir, tones, rarely), tmp_path / "log")) == 0
    assert read_history(run_dir / "events.jsonl").early_end is None, "the resumed run reached its end"
    step, _ = resumptions(run_dir)[0]
    assert done <= step <= done + 1, "no step is lost"
    assert bundle(run_dir) == bundle(whole)
    assert metrics(run_dir) == metrics(whole)
    assert "Traceback" not in (tmp_path / "log").read_text()


def signal_in_the_trial(signum: int) -> None:
    """Send a signal before the first step, while the largest batch is tried."""
    from asr.core.training.data_module import SpeechData

    make = SpeechData.worst_batches

    def make_and_signal(self: SpeechData) -> Any:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            os.kill(os.getpid(), signum)
        return make(self)

    SpeechData.worst_batches = make_and_signal  # type: ignore[method-assign]


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=str)
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_signal_before_the_first_step_stops_the_training_with_the_exit_status_of_the_signal(
    world_size: int, signum: int, status: int, tones: Path, tmp_path: Path
) -> None:
    settings = config(tmp_path / "run", tones, *(TWO if world_size > 1 else []))
    before = partial(signal_in_the_trial, signum)
    processes = start(settings, tmp_path / "log", world_size=world_size, before=before)
    assert finish(processes) == status, (tmp_path / "log").read_text()
    assert steps_logged(tmp_path / "run") == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def own_process_group() -> None:
    os.setpgid(0, 0)


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGUSR1, 138), (signal.SIGINT, 130)], ids=str)
def test_a_signal_to_all_processes_does_not_interrupt_the_workers(
    signum: int, status: int, tones: Path, tmp_path: Path
) -> None:
    """Ctrl-C in a terminal and SLURM send signals to all processes."""
    run_dir = tmp_path / "run"
    settings = config(run_dir, tones, "data.num_workers=2", "trainer.max_epochs=100", "checkpoint.every_steps=1000")
    running = start(settings, tmp_path / "log", before=own_process_group)
    assert wait_for(lambda: steps_logged(run_dir) > 2, running)
    assert running[0].pid is not None
    os.killpg(running[0].pid, signum)
    assert finish(running) == status, (tmp_path / "log").read_text()
    assert kept_checkpoints(run_dir / "checkpoints")


def test_pressing_ctrl_c_repeatedly_stops_the_training_immediately(tones: Path, tmp_path: Path) -> None:
    running = start(config(tmp_path / "run", tones, "trainer.max_epochs=100"), tmp_path / "log")
    assert wait_for(lambda: steps_logged(tmp_path / "run") > 2, running)
    assert running[0].pid is not None
    for _ in range(20):
        with contextlib.suppress(ProcessLookupError):  # the process may have ended already
            os.kill(running[0].pid, signal.SIGINT)
        time.sleep(0.005)
    assert finish(running) in (130, -signal.SIGINT)  # -SIGINT if the signal arrives while Python is shutting down


@pytest.mark.parametrize("state", ["RUNNING", "CANCELLED"])
def test_a_signal_to_the_first_of_two_processes_stops_both(state: str, tones: Path, tmp_path: Path) -> None:
    """Under SLURM the job is also requeued, unless it was cancelled."""
    run_dir, tools = tmp_path / "run", tmp_path / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho JobState={state}\n')
    (tools / "scontrol").chmod(0o755)
    environment = {"SLURM_JOB_ID": "77", "PATH": f"{tools}:{os.environ['PATH']}"}
    settings = config(run_dir, tones, *TWO, "trainer.max_epochs=100")
    running = start(settings, tmp_path / "log", world_size=2, environment=environment)
    assert wait_for(lambda: steps_logged(run_dir) > 2, running)
    assert running[0].pid is not None
    os.kill(running[0].pid, signal.SIGTERM)
    assert finish(running) == 143
    assert running[1].exitcode == 0
    commands = ["show job 77", "requeue 77"] if state == "RUNNING" else ["show job 77"]
    assert (tmp_path / "asked").read_text().splitlines() == commands
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_file_deleted_before_a_run_resumes_is_skipped_as_in_an_undisturbed_run(tones: Path, tmp_path: Path) -> None:
    corpus, run_dir = bad_corpus(tones, tmp_path / "corpus"), tmp_path / "run"
    (corpus / "audio" / "train-7.flac").unlink()
    tolerant = "data.max_bad_fraction=0.1"
    assert finish(start(config(run_dir, corpus, tolerant), tmp_path / "first.log")) == 1
    assert mentions(error(tmp_path / "first.log"), "train-7.flac ... not found")
    shutil.copy(tones / "audio" / "train-7.flac", corpus / "audio")
    half(run_dir, corpus, tmp_path / "log", tolerant)
    (corpus / "audio" / "train-7.flac").unlink()
    assert finish(start(config(run_dir, corpus, tolerant), tmp_path / "log")) == 0, (tmp_path / "log").read_text()
    assert re.search(r"epoch 2: skipped 'train-7': .*train-7\.flac", (run_dir / "train.log").read_text())


def test_a_damaged_checkpoint_is_excluded_from_the_bundle(whole: Path, tmp_path: Path) -> None:
    from asr.core.objective.outcome import make_bundle

    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    chosen, *others = kept_checkpoints(run_dir / "checkpoints")
    settings = settings_with(*RUN, f"run_dir={run_dir}", "checkpoint.select=average_last", "corpus.name=tones")
    flip_a_bit(chosen.path)
    card = (make_bundle(settings, None) / "README.md").read_text()
    assert chosen.path.stem not in card
    assert any(other.path.stem in card for other in others)


def test_a_process_that_dies_ends_the_others_with_a_one_line_error(tones: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    running = start(config(run_dir, tones, *TWO, "trainer.max_epochs=100"), tmp_path / "log", world_size=2)
    assert wait_for(lambda: steps_logged(run_dir) > 2, running)
    running[1].kill()
    assert finish(running) == 1
    assert mentions(error(tmp_path / "log"), "process 1 ... connection")


# ---- several processes: a test starts only the first, as a user does in a shell, and Lightning starts the others

PROGRAM = """
import os, pathlib, signal, time
from asr.core.training.task import TrainingTask
from asr.train import main

step = TrainingTask.training_step

def harmed(self, batch, batch_idx):
    if self.global_step == 3:
        exec(os.environ.get(f"IN_{self.global_rank + 1}", ""))
    return step(self, batch, batch_idx)

if __name__ == "__main__":
    pathlib.Path("processes").mkdir(exist_ok=True)
    pathlib.Path("processes", str(os.getpid())).touch()
    TrainingTask.training_step = harmed
    main()
"""
WAITS = "time.sleep(1000)"  # like a collective operation that other ranks never join


def ended(
    harm: dict[str, str], tones: Path, folder: Path, world_size: int, strategy: str = "ddp"
) -> subprocess.CompletedProcess[str]:
    """Train on several processes, and wait until all of them have ended.

    Args:
        harm: environment variables; the value of IN_1, IN_2, ... is code that process 1, 2, ... runs before step 4.
        tones: folder of the corpus.
        folder: working folder.
        world_size: number of processes.
        strategy: value of trainer.strategy.
    """
    (folder / "program.py").write_text(PROGRAM)
    processes = [f"trainer.strategy={strategy}", f"trainer.devices={world_size}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **harm}
    command = [sys.executable, "program.py", *RUN, *tone_corpus(tones), "run_dir=run", *processes]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    folders = [Path("/proc", path.name) for path in (folder / "processes").iterdir()]
    assert len(folders) == world_size
    end = time.monotonic() + PATIENCE
    while any(path.exists() for path in folders):
        assert time.monotonic() < end, "a process is still alive"
        time.sleep(0.1)
    return done


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    ("harm", "world_size", "named"),
    [
        ({"IN_2": "os.kill(os.getpid(), signal.SIGKILL)"}, 2, "process 2 was killed by SIGKILL"),
        ({"IN_2": "raise ValueError('a bug')"}, 2, "process 2 failed with exit status 1"),
        (
            {"IN_3": "os.kill(os.getpid(), signal.SIGSEGV)", "IN_1": WAITS, "IN_2": WAITS},
            3,
            "process 3 was killed by SIGSEGV",
        ),
    ],
    ids=["killed", "a bug", "crashed while the others wait"],
)
def test_a_process_that_dies_is_named_in_one_line_and_no_other_process_remains(
    harm: dict[str, str], world_size: int, named: str, strategy: str, tones: Path, tmp_path: Path
) -> None:
    done = ended(harm, tones, tmp_path, world_size, strategy)
    assert done.returncode == 1
    line = f"error: all {world_size} processes must run to the end; {named}. Run the same command to resume."
    for text in (done.stderr, (tmp_path / "run" / "train.log").read_text()):
        assert text.count("error: ") == 1, text
        assert text.count(line) == 1, text
    assert ("ValueError: a bug" in done.stderr) == ("raise" in harm["IN_2"] if "IN_2" in harm else False)


@pytest.mark.slow
def test_no_process_outlives_the_first_process(tones: Path, tmp_path: Path) -> None:
    harm = {"IN_1": "os.kill(os.getpid(), signal.SIGKILL)", "IN_2": WAITS}
    assert ended(harm, tones, tmp_path, 2).returncode == -signal.SIGKILL


def test_a_process_whose_parent_has_already_ended_also_ends(tones: Path, tmp_path: Path) -> None:
    """Otherwise the process would wait for its parent for half an hour."""
    settings = config(tmp_path / "run", tones, *TWO)
    late = {"LOCAL_RANK": "1", STARTED_BY_FIRST: "1"}  # process 1 is not its parent, as if its parent had ended
    assert finish(start(settings, tmp_path / "log", environment=late)) == 0
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.parametrize("replaced", [False, True])
def test_the_error_of_a_worker_that_dies_is_recognised_wherever_it_arises(replaced: bool) -> None:
    """torch raises it in a signal handler: also inside of inspect.getfullargspec, which replaces it by a TypeError."""

    def fit_trainer(*_: object, **__: object) -> None:
        try:
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
        except RuntimeError as error:
            if replaced:
                raise TypeError("unsupported callable") from error
            raise

    trainer = SimpleNamespace(fit=fit_trainer, interrupted=False, world_size=1)
    run = SimpleNamespace(resume=None, settings=SimpleNamespace(trainer=None))
    task, stop = SimpleNamespace(total_steps=1), SimpleNamespace(at_once=False)
    with refused(InputError, "processes ... audio ... pid 7", cure="data.num_workers"):
        fit(cast(Any, trainer), cast(Any, task), cast(Any, None), cast(Any, run), cast(Any, stop))
