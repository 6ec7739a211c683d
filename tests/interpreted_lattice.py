"""Tests of the lattices' kernel on the CPU, in a process in which TRITON_INTERPRET is 1; test_lattice.py runs them.

The references are torch's CTC loss and the plain recursion, both in float64.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asr.base.kernels import native
from asr.base.kernels import transducer_loss as transducer
from asr.base.kernels.ctc_loss import ctc_loss
from asr.base.kernels.transducer_loss import transducer_loss
from asr.train import train
from tests.conftest import TINY, settings_with, tone_corpus
from tests.targets import targets_of
from tests.test_train import metrics

VOCAB_SIZE = 5
Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def ctc(logits: Tensor, tokens: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
    log_probs = logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return ctc_loss(log_probs, lengths, targets_of(tokens, token_lengths))


def exact_ctc(logits: Tensor, tokens: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
    by_frame = logits.log_softmax(dim=-1).transpose(0, 1)
    return F.ctc_loss(by_frame, tokens, lengths, token_lengths, reduction="none")


FORMS = {"ctc": None, "rnnt": (), "tdt": (0, 1, 3)}  # durations


@pytest.fixture(params=FORMS.values(), ids=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Loss, Loss, int, bool]]:
    """Yield the loss by the kernel, the exact loss, the number of logits of a cell, and whether cells have columns."""
    durations = request.param
    assert native.triton_lattice(torch.device("cpu")) is not None
    if durations is None:
        yield ctc, exact_ctc, VOCAB_SIZE, False
        return
    sigma, fast_emit = (0.05, 0.0) if durations else (0.0, 0.1)

    def loss(*batch: Tensor) -> Tensor:
        return transducer_loss(*batch, durations, sigma, fast_emit)

    def exact(*batch: Tensor) -> Tensor:
        with monkeypatch.context() as patch:
            patch.setattr(transducer, "triton_lattice", lambda device: None)
            return loss(*batch)

    yield loss, exact, VOCAB_SIZE + len(durations), True


def compared(
    form: tuple[Loss, Loss, int, bool], lengths: Tensor, token_lengths: Tensor, scales: Tensor, dtype: torch.dtype
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield loss, exact loss, gradient and exact gradient of each utterance; the padding of the first has junk."""
    loss, exact, num_logits, has_columns = form
    size = (len(lengths), int(lengths.max()), *([int(token_lengths.max()) + 1] if has_columns else []), num_logits)
    logits = (torch.randn(size) * scales.view(-1, *[1] * (len(size) - 1))).to(dtype)
    tokens = torch.randint(1, VOCAB_SIZE, (len(lengths), int(token_lengths.max())))
    junk, with_junk = tokens.clone(), logits.clone()
    for row, (num_frames, num_tokens) in enumerate(zip(lengths, token_lengths, strict=True)):
        junk[row, num_tokens:] = -7
        with_junk[row, num_frames:] = math.nan
        if has_columns:
            with_junk[row, :, num_tokens + 1 :] = math.nan
    losses, gradients = [], []
    for compute, inputs, ids in ((loss, with_junk, junk), (exact, logits.double(), tokens)):
        inputs.requires_grad_()
        losses.append(compute(inputs, ids, lengths, token_lengths))
        gradients.append(torch.autograd.grad(losses[-1][losses[-1].isfinite()].sum(), inputs)[0].double())
    for row in range(len(lengths)):
        own = [each[row, : lengths[row]] for each in gradients]
        yield losses[0][row].detach(), losses[1][row].detach(), own[0], own[1]


def assert_same_gradients(gradient: Tensor, exact: Tensor, tolerance: float) -> None:
    """The tolerance is relative to the largest gradient of the utterance."""
    largest = max(exact.abs().flatten().tolist(), default=0.0)
    torch.testing.assert_close(gradient, exact, rtol=0, atol=tolerance * max(largest, 1e-3))


def test_losses_and_gradients_of_random_lattices_are_exact(form: tuple[Loss, Loss, int, bool]) -> None:
    torch.manual_seed(0)
    number = 40 if form[2] > VOCAB_SIZE else 80  # the interpreter takes longest with durations
    lengths, token_lengths = torch.randint(0, 7, (number,)), torch.randint(0, 4, (number,))
    lengths[:4], token_lengths[:4] = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    scales = 10.0 ** torch.randint(-1, 5, (number,))
    finite = 0
    for loss, exact, gradient, exact_gradient in compared(form, lengths, token_lengths, scales, torch.float32):
        torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-6)
        if exact.isfinite():
            finite += 1
            assert_same_gradients(gradient, exact_gradient, 1e-4)
    assert number / 2 < finite < number


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_losses_and_gradients_of_long_lattices_are_exact(
    form: tuple[Loss, Loss, int, bool], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    lengths, token_lengths, scales = torch.tensor([200, 111]), torch.tensor([40, 3]), torch.tensor([5.0, 5.0])
    for loss, exact, gradient, exact_gradient in compared(form, lengths, token_lengths, scales, dtype):
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=0)
        assert_same_gradients(gradient, exact_gradient, 1e-4 if dtype == torch.float32 else 1e-2)


def test_a_nan_in_a_frame_is_not_hidden(form: tuple[Loss, Loss, int, bool]) -> None:
    loss, _, num_logits, has_columns = form
    logits = torch.randn(2, 3, *([2] if has_columns else []), num_logits)
    logits[0, 1] = math.nan
    losses = loss(logits, torch.tensor([[1], [2]]), torch.tensor([3, 3]), torch.tensor([1, 1]))
    assert losses.isnan().tolist() == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("head", ["ctc", "transducer"])
def test_a_run_in_bfloat16_that_is_resumed_has_the_losses_of_the_plain_forms(
    head: str, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = []
    for name in ("kernel", "plain"):
        if name == "plain":
            for module in ("ctc_loss", "transducer_loss"):
                monkeypatch.setattr(f"asr.base.kernels.{module}.triton_lattice", lambda device: None)
        overrides = [
            *TINY,
            *tone_corpus(tones),
            f"head={head}",
            f"run_dir={tmp_path / name}",
            "trainer.precision=bf16-mixed",
        ]
        few = ["data.batch_seconds=3", "corpus.test=[]", "trainer.log_every_n_steps=1"]
        for steps in (1, 3):
            train(settings_with(*overrides, *few, f"trainer.max_steps={steps}", "resume.allow=[trainer.max_steps]"))
        losses.append([float(row["train/loss"]) for row in metrics(tmp_path / name) if row["train/loss"]])
    assert len(losses[0]) == 3
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
