"""Between two logged steps, only the functions named here make the program wait for the device."""

from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from asr.components.decode import greedy_paths, greedy_steps
from asr.components.decode.greedy_steps import PASSES_PER_WAIT
from asr.core.checkpoint.saved import kept_checkpoints
from asr.core.data.batch import Batch
from asr.core.recognition.inference import have_nan
from asr.core.training import task
from asr.core.training.objective import Losses
from asr.core.training.task import TrainingTask
from asr.errors import InputError
from asr.interfaces import Encoded
from asr.train import train
from benchmarks.gpu.counts import Questions
from tests.conftest import TINY, settings_with, tone_corpus
from tests.refusals import refused
from tests.test_greedy_hotwords import search_of
from tests.test_train import metrics
from tests.transducers import DIM


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> list[Counter[str]]:
    """Return a list that receives, for each batch of a run, the counts of Questions, by function.

    The run treats its device as slow, like a GPU.
    """
    batches: list[Counter[str]] = []
    modes: list[Questions] = []
    begin, end = TrainingTask.on_train_batch_start, TrainingTask.on_train_batch_end

    def start(self: TrainingTask, batch: Batch, batch_idx: int) -> None:
        begin(self, batch, batch_idx)
        modes.append(Questions())
        modes[-1].__enter__()

    def stop(self: TrainingTask, *arguments: Any) -> None:
        modes[-1].__exit__(None, None, None)
        batches.append(modes.pop().counts)
        end(self, *arguments)

    monkeypatch.setattr(TrainingTask, "on_train_batch_start", start)
    monkeypatch.setattr(TrainingTask, "on_train_batch_end", stop)
    monkeypatch.setattr(task, "answers_at_once", lambda device: False)
    return batches


@pytest.mark.parametrize(
    ("how", "waits"),
    [
        (["trainer.accumulate_grad_batches=2"], []),
        (["ema.decay=0.9"], []),
        pytest.param(["encoder=transformer", "head=ctc"], [], marks=pytest.mark.slow),
        pytest.param(["encoder/block/norm=layer_norm", "head=ctc_consistency"], [], marks=pytest.mark.slow),
        pytest.param(
            ["encoder=fast_conformer_s", "head=ctc_self_conditioned", "head.num_intermediate=1"],
            [],
            marks=pytest.mark.slow,
        ),
        pytest.param(["encoder/block/attention=rotary_attention", "head=ctc_attention"], [], marks=pytest.mark.slow),
        (["head=transducer"], []),
        (["head=tdt", "head.omega=0"], []),
    ],
    ids=[
        "accumulated",
        "moving average",
        "ctc",
        "ctc_consistency",
        "ctc_self_conditioned",
        "ctc_attention",
        "transducer",
        "tdt",
    ],
)
def test_a_step_that_is_not_logged_waits_for_the_device_only_in_named_functions(
    how: list[str], waits: list[str], operations: list[Counter[str]], tones: Path, tmp_path: Path
) -> None:
    """A logged step waits once more. Waits within an operation, as in torch's CTC loss, are not visible on a CPU."""
    tiny = [override for override in TINY if "convolution" not in override or "transformer" not in how[0]]
    overrides = [*tiny, *tone_corpus(tones), *how, "trainer.max_steps=8", "trainer.log_every_n_steps=3"]
    settings = settings_with(*overrides, f"run_dir={tmp_path / 'run'}", "data.batch_seconds=3", "corpus.test=[]")
    train(settings)
    accumulated = settings.trainer.accumulate_grad_batches
    assert len(operations) == 8 * accumulated
    logged = {3, 6, 8}  # the last step is logged too
    assert {int(row["step"]) for row in metrics(tmp_path / "run") if row["train/loss"]} == {3, 6}
    operations[0].pop("lightning_internals._update_average", None)  # reads whether a checkpoint had an average
    for number, counts in enumerate(operations, start=1):
        step, rest = divmod(number, accumulated)
        assert counts.pop("step_sums.wait_for", 0) == (rest == 0 and step in logged)
        assert counts.keys() == set(waits), f"batch {number} waits in {dict(counts)}"


def test_a_non_finite_loss_that_is_found_late_is_attributed_to_its_own_step(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The non-finite loss is found before a checkpoint of the damaged weights is written."""
    compute, ids = TrainingTask.losses, []

    def spoilt(self: TrainingTask, batch: Batch) -> Losses:
        losses = compute(self, batch)
        if self.global_step != 2 or not self.trainer.training:
            return losses
        ids.append(batch.utterances[1].id)
        factor = torch.ones(len(batch))
        factor[1] = torch.nan
        return losses._replace(by_name={name: loss * factor for name, loss in losses.by_name.items()})

    monkeypatch.setattr(TrainingTask, "losses", spoilt)
    monkeypatch.setattr(task, "answers_at_once", lambda device: False)
    run_dir = tmp_path / "run"
    often = ["trainer.log_every_n_steps=50", "checkpoint.every_steps=2", "data.batch_seconds=3"]
    with refused(InputError, "in epoch ... 1 ... 3") as raised:
        train(settings_with(*TINY, *tone_corpus(tones), *often, f"run_dir={run_dir}"))
    assert ids[-1] in str(raised.value)
    assert [path.name for path in (run_dir / "faults").iterdir()] == ["epoch=1-step=3-rank=0-0.pt"]
    assert [checkpoint.step for checkpoint in kept_checkpoints(run_dir / "checkpoints")] == [2]


@pytest.mark.slow
def test_losses_equal_those_of_a_run_that_waits_for_the_device(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    for late in (False, True):
        if late:
            monkeypatch.setattr(task, "answers_at_once", lambda device: False)
        few = ["trainer.max_steps=8", "trainer.log_every_n_steps=3", "corpus.test=[]", "data.batch_seconds=3"]
        train(settings_with(*TINY, *tone_corpus(tones), *few, f"run_dir={tmp_path / str(late)}"))
        rows = [row for row in metrics(tmp_path / str(late)) if row["train/loss"]]
        runs.append([(row["step"], row["train/loss"], row["train/grad_norm"]) for row in rows])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("kind", ["transducer", "tdt"])
def test_a_greedy_search_asks_the_device_once_in_several_passes_and_finds_the_same(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = torch.tensor([30, 0, 17, 60])
    for seed in range(4):
        search = search_of(kind, seed=seed)
        evidence = search.evidence(Encoded(torch.randn(len(lengths), 60, DIM, dtype=torch.float64), lengths, {}))
        expected = search.search(evidence)
        with monkeypatch.context() as slow, Questions() as questions:
            for module in (greedy_steps, greedy_paths):
                slow.setattr(module, "answers_at_once", lambda device: False)
            step = Mock(wraps=search.head.predictor.step)
            slow.setattr(search.head.predictor, "step", step)
            assert search.search(evidence) == expected
        num_passes = step.call_count - 1  # the first step reads the blank
        assert num_passes >= PASSES_PER_WAIT, "the search takes several passes"
        at_end = {"transducer_greedy.search": 2, "greedy_paths.written": 4}
        assert questions.counts == at_end | {"greedy_steps.remain": 1 + num_passes // PASSES_PER_WAIT}


def test_rows_with_nan_are_found_together() -> None:
    rows = [torch.zeros(3, 2), torch.tensor([[0.0, torch.nan]]), torch.zeros(0, 2)]
    assert have_nan(rows) == [False, True, False]
    assert have_nan([]) == []
