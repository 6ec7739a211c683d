"""A run that starts from a trained model gives bit-identical results if it is killed before or after unfreezing."""

import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from asr.run.initialization import with_parts
from asr.settings.read import as_mapping
from tests.conftest import TINY, settings_with, tone_corpus
from tests.processes import bundle, examples, finish, kill, metrics, resumptions, start, steps_logged, wait_for
from tests.test_resume import die_after_the_first_checkpoint, die_in

KILLS = 6
STEPS_FROZEN = 5  # steps before the frozen weights are trained
TWO = ["trainer.strategy=ddp", "trainer.devices=2"]
RUN = [
    *(line for line in TINY if line.startswith(("trainer", "data", "schedule", "checkpoint"))),
    "augment=[speed_perturb,spec_augment]",
    "data.max_utterances=6",
    "optimizer.layer_decay=0.8",
    "init.frozen=[encoder.subsampling.*,encoder.blocks.0.*]",
    f"init.frozen_steps={STEPS_FROZEN}",
    "ema.decay=0.9",
    "num_threads=1",
    "checkpoint.every_steps=3",
]


def config(run_dir: Path, model: Path, corpus: Path, *overrides: str) -> dict[str, Any]:
    given = [*RUN, *tone_corpus(corpus), f"init.from={model}", f"run_dir={run_dir}", *overrides]
    return as_mapping(with_parts(settings_with(*given), given))


def assert_same(parts: Path, whole: Path) -> None:
    assert bundle(parts) == bundle(whole)
    assert metrics(parts) == metrics(whole)
    assert metrics(parts)[0]["step"] == "0"
    assert examples(parts) == examples(whole)
    for name in ("results.json", "comparison.json"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize(
    "moments",
    [
        [die_after_the_first_checkpoint],  # killed while weights are frozen
        pytest.param(
            [
                partial(die_in, "asr.training.task.count_errors"),  # killed during the validation before the first step
                die_after_the_first_checkpoint,
                die_after_the_first_checkpoint,  # killed after weights are unfrozen
                partial(die_in, "asr.run.outcome.compare"),
            ],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["once", "in every phase"],
)
def test_a_run_killed_in_any_phase_gives_bit_identical_results(
    moments: list[Callable[[], object]], fluent: Path, tones: Path, tmp_path: Path
) -> None:
    whole, parts, log = tmp_path / "whole", tmp_path / "parts", tmp_path / "log"
    short = ["trainer.max_steps=7"]
    assert finish(start(config(whole, fluent / "run", tones, *short), tmp_path / "whole.log")) == 0
    for moment in moments:
        killed = start(config(parts, fluent / "run", tones, *short), log, before=moment)
        assert finish(killed) == -signal.SIGKILL, log.read_text()
    assert finish(start(config(parts, fluent / "run", tones, *short), log)) == 0, log.read_text()
    assert [step for step, _ in resumptions(parts)] == [3, 6][: len(moments)]
    assert log.read_text().count("are trained from now on") == 1
    assert_same(parts, whole)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_killed_at_random_moments_gives_bit_identical_results(
    world_size: int, fluent: Path, tones: Path, tmp_path: Path
) -> None:
    whole, parts, log = tmp_path / "whole", tmp_path / "parts", tmp_path / "log"
    how = [*(TWO if world_size == 2 else []), "trainer.max_epochs=4"]
    begin = partial(start, output=log, world_size=world_size)
    assert finish(begin(config(whole, fluent / "run", tones, *how))) == 0, log.read_text()
    assert int(metrics(whole)[-1]["step"]) > 2 * STEPS_FROZEN
    moments = random.Random(world_size)
    for attempt in range(KILLS):
        workers = f"data.num_workers={attempt % 2}"
        done = steps_logged(parts) + moments.randint(0, 3)
        running = begin(config(parts, fluent / "run", tones, *how, workers))
        assert wait_for(lambda done=done: steps_logged(parts) > done, running), log.read_text()  # type: ignore[misc]
        time.sleep(moments.uniform(0, 0.1))
        kill(running)
    assert finish(begin(config(parts, fluent / "run", tones, *how))) == 0, log.read_text()
    assert len(resumptions(parts)) > 1
    assert_same(parts, whole)


def test_two_processes_that_unfreeze_weights_keep_them_equal(fluent: Path, tones: Path, tmp_path: Path) -> None:
    """DDP decides before the first step which gradients it reduces; weights that it leaves out would drift apart."""
    (tmp_path / "weights").mkdir()
    settings = config(tmp_path / "run", fluent / "run", tones, *TWO, "trainer.max_steps=7", "corpus.test=[]")
    before = partial(write_weights, tmp_path / "weights")
    assert finish(start(settings, tmp_path / "log", world_size=2, before=before)) == 0, (tmp_path / "log").read_text()
    first, second = (torch.load(tmp_path / "weights" / f"{rank}.pt") for rank in (0, 1))
    started = load_file(fluent / "run" / "bundle" / "weights.safetensors")
    name = next(name for name in first if name.startswith("encoder.blocks.0.") and first[name].ndim == 2)
    assert not torch.equal(first[name], started[name])
    assert all(torch.equal(first[name], second[name]) for name in first)


def write_weights(folder: Path) -> None:
    """Write the weights of each process at the end of its training."""
    from asr.training.task import RecognitionTask

    def write(task: Any) -> None:
        torch.save(dict(task.model.state_dict()), folder / f"{task.global_rank}.pt")

    RecognitionTask.on_train_end = write  # type: ignore[method-assign]


def test_a_resumed_run_finds_its_start_model_elsewhere_and_refuses_a_changed_one(
    fluent: Path, tones: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(fluent / "run" / "bundle", tmp_path / "model")
    begun = start(
        config(tmp_path / "run", model, tones, "trainer.max_steps=5"),
        tmp_path / "first.log",
        before=die_after_the_first_checkpoint,
    )
    assert finish(begun) == -signal.SIGKILL
    weights = load_file(model / "weights.safetensors")
    name = min(weights)
    save_file(weights | {name: weights[name] + 1e-6}, model / "weights.safetensors")
    assert finish(start(config(tmp_path / "run", model, tones, "trainer.max_steps=5"), tmp_path / "other.log")) == 1
    assert re.search(r"Changed: fitted\.init\.from: '\w+' -> '\w+'\.", (tmp_path / "other.log").read_text())
    moved = config(tmp_path / "run", fluent / "run", tones, "trainer.max_steps=5")
    assert finish(start(moved, tmp_path / "moved.log")) == 0, (tmp_path / "moved.log").read_text()
    assert "resuming from step 3" in (tmp_path / "moved.log").read_text()
