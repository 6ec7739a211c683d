"""Logged statistics of batches, and the utterances that are stored as validation samples."""

import itertools
import json
import os
import re
import signal
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asr.core.data.manifest import Utterance, read_manifest
from asr.core.run.events import EventsFile, read_history
from asr.core.run.validation_samples import SamplesFile, ValidationSample, choose_samples, read_samples
from asr.core.training.progress import LogLines
from tests.conftest import TINY, resolved, tone_corpus
from tests.processes import examples, finish, start
from tests.test_global_loss import planned
from tests.test_train import metrics

TWO = ["trainer.strategy=ddp", "trainer.devices=2"]


def config(run_dir: Path, corpus: Path, *overrides: str) -> dict[str, Any]:
    small = ["trainer.max_epochs=1", "data.batch_seconds=3", "num_threads=1", "corpus.test=[]"]
    return resolved(*TINY, *tone_corpus(corpus), *small, f"run_dir={run_dir}", *overrides)


@pytest.mark.parametrize(
    ("world_size", "accumulate"),
    [*(pytest.param(*slow, marks=pytest.mark.slow) for slow in ((1, 1), (1, 3), (2, 1))), (2, 3)],
)
def test_logged_padding_is_the_share_of_frames_in_a_step_that_belong_to_no_utterance(
    world_size: int, accumulate: int, tones: Path, tmp_path: Path
) -> None:
    """A step consists of all ranks' batches in its accumulation window; the last window may be shorter."""
    how = [*(TWO if world_size > 1 else []), "augment=[speed_perturb]"]
    settings = config(tmp_path / "run", tones, *how, f"trainer.accumulate_grad_batches={accumulate}")
    assert finish(start(settings, tmp_path / "log", world_size=world_size)) == 0, (tmp_path / "log").read_text()

    _, planned_examples = planned(settings, tones, world_size)
    expected = []
    for begin in range(0, len(planned_examples), accumulate):
        frames = padded = 0
        for ranks in planned_examples[begin : begin + accumulate]:
            for batch in ranks:
                lengths = [len(example.features) for example in batch]
                frames += sum(lengths)
                padded += len(lengths) * max(lengths)
        expected.append((padded - frames) / padded)
    padding = [float(row["train/padding"]) for row in metrics(tmp_path / "run") if row["train/padding"]]
    assert padding == pytest.approx(expected, abs=1e-6)  # logged in float32
    assert max(padding) > 0.05, "something must have been padded"


def slow(where: str, rank: str | None = None) -> None:
    """Delay a process by 0.2 s whenever it reads audio, or whenever it computes a training step."""
    from asr.core.data.dataset import SpeechDataset
    from asr.core.training.task import TrainingTask

    owner, name = {"data": (SpeechDataset, "_made"), "net": (TrainingTask, "training_step")}[where]
    work = getattr(owner, name)

    def work_slowly(*arguments: Any) -> Any:
        time.sleep(0.3)  # much longer than the rest of a step, also on a loaded machine
        return work(*arguments)

    if rank in (None, os.environ.get("LOCAL_RANK", "0")):
        setattr(owner, name, work_slowly)


@pytest.mark.parametrize(
    ("where", "rank", "world_size", "workers", "least", "most"),
    [
        ("data", None, 1, 0, 0.6, 1.0),
        # A slow reader in another process delays this process as well.
        pytest.param("data", None, 1, 1, 0.5, 1.0, marks=pytest.mark.slow),
        ("net", None, 1, 2, 0.0, 0.4),
        pytest.param(
            "data", "1", 2, 0, 0.3, 0.7, marks=pytest.mark.slow
        ),  # the mean over ranks: rank 0 waits for the gradients of rank 1, not for data
    ],
    ids=["slow data", "slow workers", "slow net", "slow data of one of two"],
)
def test_data_wait_is_the_share_of_a_steps_time_spent_waiting_for_batches(
    where: str, rank: str | None, world_size: int, workers: int, least: float, most: float, tones: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    how = [*(TWO if world_size > 1 else []), f"data.num_workers={workers}", "trainer.max_steps=8"]
    settings = config(run_dir, tones, *how, "data.max_utterances=2")
    running = start(settings, tmp_path / "log", world_size=world_size, before=partial(slow, where, rank))
    assert finish(running) == 0, (tmp_path / "log").read_text()
    shares = [float(row["train/data_wait"]) for row in metrics(run_dir) if row["train/data_wait"]]
    assert len(shares) == 8
    assert all(0 <= share <= 1 for share in shares)
    # The first two steps are left out, because workers start and prefetch during them.
    assert least <= sum(shares[2:]) / 6 <= most, shares


@pytest.mark.slow
def test_the_time_of_a_step_excludes_validations(tones: Path, tmp_path: Path) -> None:
    """A validation of ten seconds after each step does not lower the training speed."""
    always = ["trainer.check_val_every_n_epoch=null", "+trainer.val_check_interval=1", "trainer.max_steps=2"]
    settings = config(tmp_path / "run", tones, *always, "data.max_utterances=1", "corpus.valid=[train.jsonl]")
    assert finish(start(settings, tmp_path / "log", before=partial(slow, "data"))) == 0, (tmp_path / "log").read_text()
    rows = metrics(tmp_path / "run")
    longest = max(utterance.duration for utterance in read_manifest(tones / "train.jsonl"))
    assert longest / float(rows[1]["train/audio_seconds_per_second"]) < 5


def test_an_epoch_that_ends_early_is_not_reported_as_done(tones: Path, tmp_path: Path) -> None:
    """A run of 60 steps, with one utterance per step, covers the 48 utterances 1.25 times."""
    short = ["trainer.max_epochs=-1", "trainer.max_steps=60", "data.max_utterances=1"]
    assert finish(start(config(tmp_path / "run", tones, *short), tmp_path / "log")) == 0, (tmp_path / "log").read_text()
    assert re.findall(r"epoch .*, step \d+ of \d+", (tmp_path / "run" / "train.log").read_text()) == [
        "epoch 1 done, step 48 of 60",
        "epoch 2, step 60 of 60",
    ]
    assert read_history(tmp_path / "run" / "events.jsonl").passes == 1.25


def test_a_line_has_the_mean_loss_and_the_clipped_share_of_the_steps_since_the_last_line(
    tones: Path, tmp_path: Path
) -> None:
    norm = 5.0
    settings = config(tmp_path / "run", tones, "trainer.max_epochs=2", f"trainer.gradient_clip_val={norm}")
    assert finish(start(settings, tmp_path / "log")) == 0, (tmp_path / "log").read_text()
    steps = [row for row in metrics(tmp_path / "run") if row["train/loss"]]
    lines = re.findall(
        r"epoch (\d) of 2 done, step (\d+) of (\d+): train loss (\S+), learning rate (\S+), WER \S+ %, .*, (\d+) % of",
        (tmp_path / "run" / "train.log").read_text(),
    )
    assert [int(line[0]) for line in lines] == [1, 2]
    assert {int(line[2]) for line in lines} == {len(steps)}
    begin = 0
    for _, end, _, loss, rate, clipped in lines:
        of_line = steps[begin : int(end)]
        losses = [float(row["train/loss"]) for row in of_line]
        assert min(losses) < float(loss) < max(losses)
        assert float(rate) == pytest.approx(float(of_line[-1]["train/learning_rate"]), rel=1e-2)
        share = sum(float(row["train/grad_norm"]) > norm for row in of_line) / len(of_line)
        assert int(clipped) == pytest.approx(100 * share, abs=0.51)
        begin = int(end)


def test_each_validation_has_a_line_in_the_terminal_and_in_the_log(tones: Path, tmp_path: Path) -> None:
    often = ["+trainer.val_check_interval=3", "trainer.max_steps=9", "data.max_utterances=1"]
    assert finish(start(config(tmp_path / "run", tones, *often), tmp_path / "log")) == 0
    for log in (tmp_path / "log", tmp_path / "run" / "train.log"):
        assert re.findall(r"validation at step (\d+): .*WER", log.read_text()) == ["3", "6", "9"], log


def die_after_the_first_examples() -> None:
    """Kill this process after it has stored a validation's samples and before it writes the checkpoint."""
    append = SamplesFile.append

    def append_and_die(*arguments: Any) -> None:
        append(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    SamplesFile.append = append_and_die  # type: ignore[method-assign]


@pytest.mark.slow
def test_a_repeated_validation_is_stored_once(tones: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    often = ["trainer.max_epochs=2", "checkpoint.every_steps=2"]
    assert finish(start(config(whole, tones, *often), tmp_path / "log")) == 0
    killed = start(config(parts, tones, *often), tmp_path / "log", before=die_after_the_first_examples)
    assert finish(killed) == -signal.SIGKILL
    assert len(examples(parts)) == 8
    assert finish(start(config(parts, tones, *often), tmp_path / "log")) == 0
    assert examples(parts) == examples(whole)


def test_each_validation_stores_the_hypotheses_of_the_same_utterances(tones: Path, tmp_path: Path) -> None:
    """Two processes store the same samples as one, because the learning rate is 0 and no norm has batch statistics."""
    still = ["optimizer.lr=0", "encoder/block/norm=layer_norm", "trainer.max_epochs=2"]
    for world_size in (1, 2):
        settings = config(tmp_path / str(world_size), tones, *still, *(TWO if world_size > 1 else []))
        assert finish(start(settings, tmp_path / "log", world_size=world_size)) == 0, (tmp_path / "log").read_text()
    valid = read_manifest(tones / "valid.jsonl")
    single_process, two_processes = (read_samples(tmp_path / name / "examples.jsonl") for name in ("1", "2"))
    for samples in (single_process, two_processes):
        assert [(line.epoch, line.id) for line in samples] == [
            (epoch, utterance.id) for epoch in (1, 2) for utterance in valid
        ]
        assert [line.reference for line in samples] == [utterance.text for utterance in valid] * 2
    assert [line.hypothesis for line in two_processes] == [line.hypothesis for line in single_process]
    steps = [int(row["step"]) for row in metrics(tmp_path / "1") if row["valid/wer"]]
    assert sorted({line.step for line in single_process}) == steps


def test_the_stored_examples_are_the_hypotheses_that_the_validation_scores(tones: Path, tmp_path: Path) -> None:
    """All utterances of the validation set are samples here, so their errors sum to the validation's."""
    import jiwer

    settings = config(tmp_path / "run", tones, "trainer.max_epochs=3", "optimizer.lr=8e-3")
    assert finish(start(settings, tmp_path / "log")) == 0, (tmp_path / "log").read_text()
    rows = [row for row in metrics(tmp_path / "run") if row["valid/wer"]]
    lines = read_samples(tmp_path / "run" / "examples.jsonl")
    assert len(rows) == 3
    for row in rows:
        validation_lines = [line for line in lines if line.step == int(row["step"])]
        expected = jiwer.wer(
            [line.reference for line in validation_lines], [line.hypothesis for line in validation_lines]
        )
        assert float(row["valid/wer"]) == pytest.approx(expected, abs=1e-6)


def utterances(number: int) -> list[Utterance]:
    return [Utterance(f"{place}.flac", 1.0, "", str(place)) for place in range(number)]


@pytest.mark.parametrize("number", [1, 7, 8, 9, 15, 100, 2703])
def test_the_sampled_utterances_are_spread_from_the_first_to_the_last(number: int) -> None:
    places = [int(place) for place in choose_samples(utterances(number))]
    assert places == sorted(set(places))
    assert len(places) == min(8, number)
    assert (places[0], places[-1]) == (0, number - 1)
    gaps = [after - before for before, after in itertools.pairwise(places)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_a_resumed_run_removes_truncated_lines_and_samples_that_it_will_repeat(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    file = SamplesFile(path, ["b", "a"])
    file.cut(0)
    assert not path.exists(), "an absent file is not created"
    for step in (10, 20):
        file.append(ValidationSample(step, step // 10, name, "x", "\udcff <b>\u2028") for name in "ab")
    with path.open("a") as text:
        text.write('{"step": 30, "epoch": 3, "id": "b", "refer')
    file.cut(20)
    assert [(sample.step, sample.id) for sample in read_samples(path)] == [(10, "b"), (10, "a"), (20, "b"), (20, "a")]
    whole = path.read_bytes()
    file.cut(20)
    assert path.read_bytes() == whole
    file.cut(19)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [10, 10]
    assert read_samples(path)[0].hypothesis == "\udcff <b>\u2028"


def test_the_time_left_does_not_count_what_precedes_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, trainer = LogLines(EventsFile(tmp_path), within_epochs=True), SimpleNamespace(global_step=100)
    seconds = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: seconds)
    calls: Any = (trainer, SimpleNamespace())
    lines.on_train_start(*calls)
    seconds = 7200.0  # of a validation before the first step
    lines.on_train_batch_start(*calls)
    seconds += 10
    assert lines._time_left(step=110, total_steps=120) == "10 s left"
