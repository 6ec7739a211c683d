"""Recorded passes: the recorded shapes, and equal results with and without recording.

A stub replaces CUDA graphs: it computes the passes again, between tensors with fixed addresses.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asr.build import build_features, build_model, build_tokenizer
from asr.recognition.model import Model
from asr.train import train
from asr.training import step_callbacks
from asr.training.recorded_passes import Forward, RecordedPass, RecordedPasses
from tests.conftest import TINY, resolved, settings_with, tone_corpus
from tests.test_train import losses, metrics

NEVER = float("nan")  # initial contents of an unwritten tensor


class Stub:
    """Passes that are recomputed at each replay, after a few warm-up passes, as in a real recording."""

    def __init__(self, run: Forward, inputs: Sequence[Tensor], places: Sequence[tuple[nn.Parameter, Tensor]]) -> None:
        self._run, self._places = run, places
        self.inputs = tuple(value.clone() for value in inputs)
        for _ in range(3):
            outputs = run(*self.inputs)
        torch.rand(100)
        self.outputs = tuple(torch.full_like(output, NEVER if output.is_floating_point() else -1) for output in outputs)
        tracked = [output for output in outputs if output.requires_grad]
        self.output_gradients = tuple(torch.full_like(output, NEVER) for output in tracked)
        gradients = self._gradients(tracked, [torch.zeros_like(output) for output in tracked])
        self.used = tuple(gradient is not None for gradient in gradients)
        self._tracked: list[Tensor] = []

    def _gradients(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> Sequence[Tensor | None]:
        return torch.autograd.grad(outputs, [weight for weight, _ in self._places], gradients, allow_unused=True)

    def forward(self) -> None:
        with torch.enable_grad():
            outputs = self._run(*self.inputs)
        self._tracked = [output for output in outputs if output.requires_grad]
        for place, output in zip(self.outputs, outputs, strict=True):
            place.copy_(output.detach())

    def backward(self) -> None:
        gradients = self._gradients(self._tracked, self.output_gradients)
        for (_, place), gradient in zip(self._places, gradients, strict=True):
            place.fill_(NEVER) if gradient is None else place.copy_(gradient)


Make = Callable[..., RecordedPass]


def make_model(*overrides: str) -> Model:
    torch.manual_seed(0)
    small = [override for override in TINY if override.startswith("encoder.") and "dropout" not in override]
    config = resolved(*small, *overrides)
    tokenizer = build_tokenizer(config)
    tokenizer.fit(["abcdef"])
    return build_model(config, tokenizer, build_features(config))


SHAPES = [(2, 60), (2, 60), (3, 44), (2, 60), (3, 44), (2, 60), (1, 80), (3, 44), (2, 60)]


def steps(model: Model, forward: Callable[[Tensor, Tensor], Any], accumulate: int = 1) -> dict[str, Any]:
    """Train on batches of these shapes; return all results."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for number, (utterances, frames) in enumerate(SHAPES):
        torch.manual_seed(number)
        features, lengths = torch.randn(utterances, frames, 80), torch.arange(frames, frames - 9 * utterances, -9)
        tokens = torch.tensor([[1, 2, 3]] * utterances)
        encoded = forward(features, lengths)
        loss = model.head.losses(encoded, tokens, torch.full((utterances,), 3))["loss"].sum()
        loss.backward()
        losses.append(float(loss.detach()))
        if (number + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return {"losses": losses, "generator": torch.get_rng_state().tolist(), "weights": model.state_dict()}


def passes_of(model: Model, record: Make = Stub, most_bytes: float = 1e9, per_shape: int = 1) -> RecordedPasses:
    taken = [0]

    def counting(*given: Any) -> RecordedPass:
        taken[0] += per_shape
        return record(*given)

    return RecordedPasses(model, counting, most_bytes, lambda: taken[0])


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("head", ["ctc_intermediate", "ctc_self_conditioned"])
def test_losses_weights_statistics_and_random_state_equal_those_without_recording(head: str, accumulate: int) -> None:
    """The model has dropout, batch statistics, taps, and weights that the encoder's pass does not use."""
    overrides = ["encoder.dropout=0.1", f"head={head}", "encoder.num_layers=3", "head.num_intermediate=1"]
    plain, model = make_model(*overrides), make_model(*overrides)
    expected = steps(plain, plain, accumulate)
    passes = passes_of(model)
    actual = steps(model, passes, accumulate)
    assert actual["losses"] == pytest.approx(expected["losses"], rel=1e-6)
    assert actual["generator"] == expected["generator"]
    torch.testing.assert_close(actual["weights"], expected["weights"], rtol=1e-5, atol=1e-6)
    assert len(passes) == 2, "(1, 80) came only once"
    assert passes.counts == {True: 6, False: 3}


def test_recording_stops_when_memory_is_used_up_and_keeps_earlier_recordings() -> None:
    passes = passes_of(model := make_model(), most_bytes=10, per_shape=10)
    steps(model, passes)
    assert (len(passes), passes.used_bytes) == (1, 10)
    assert passes.counts == {True: 4, False: 5}
    assert passes.summary() == "CUDA graphs of 1 shapes, 0.0 GiB; 44.4 % of the batches replayed"


def test_a_failed_recording_is_reported_in_one_line_and_passes_run_normally(caplog: pytest.LogCaptureFixture) -> None:
    def failing(*given: Any) -> RecordedPass:
        Stub(*given)
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand more lines")

    plain, model = make_model(), make_model()
    expected = steps(plain, plain)
    actual = steps(model, passes := passes_of(model, failing))
    assert actual["losses"] == expected["losses"]
    assert actual["generator"] == expected["generator"]
    assert not len(passes)
    assert [record.message for record in caplog.records] == [
        "CUDA graphs: recording stopped after 0 shapes: CUDA error: operation not permitted when stream is capturing"
    ]


def test_a_pass_is_not_replayed_while_its_gradients_are_pending() -> None:
    model = make_model("encoder.dropout=0", "encoder.subsampling.dropout=0", "encoder/norm=layer_norm")
    passes = passes_of(model)
    batches = [(torch.randn(2, 60, 80), torch.tensor([60, 51])) for _ in range(4)]
    for batch in batches[:2]:
        passes(*batch).out.sum().backward()
    model.zero_grad()
    first, second = passes(*batches[2]).out, passes(*batches[3]).out
    (first.square().sum() + second.square().sum()).backward()
    gradients = [weight.grad for weight in model.parameters()]
    model.zero_grad()
    sum(model(*batch).out.square().sum() for batch in batches[2:]).backward()
    torch.testing.assert_close(gradients, [weight.grad for weight in model.parameters()], rtol=1e-4, atol=1e-4)
    assert passes.counts[True] == 2
    passes(*batches[0])
    passes.begin_batch()  # its backward pass was never run
    passes(*batches[1])
    assert passes.counts[True] == 4


def test_a_module_in_another_mode_is_recorded_separately() -> None:
    passes = passes_of(model := make_model())
    norm = model.encoder.blocks[0].convolution.norm
    for training in (False, False, True, True):
        norm.training = training
        before = norm.running_mean.clone()
        passes(torch.randn(2, 60, 80), torch.tensor([60, 51])).out.sum().backward()
        assert torch.equal(before, norm.running_mean) != training
    assert len(passes) == 2


def test_nothing_is_recorded_in_validation_or_before_the_model_is_ready() -> None:
    model, ready = make_model(), []
    passes = RecordedPasses(model, Stub, 1e9, lambda: 0, lambda: bool(ready))
    batch = torch.randn(2, 60, 80), torch.tensor([60, 51])
    for _ in range(3):
        passes(*batch)
    ready.append(True)
    with torch.no_grad():
        for _ in range(3):
            passes(*batch)
    assert not len(passes)


def test_a_training_with_recorded_passes_equals_one_without(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run has accumulation, a moving average, few batch lengths, and weights that are frozen for some steps."""
    caplog.set_level(logging.INFO, "asr")
    monkeypatch.setattr(step_callbacks, "cuda_passes", lambda model, device, **_: passes_of(model))
    runs = []
    for share in (0, 0.5):
        run_dir = tmp_path / str(share)
        how = ["trainer.max_epochs=2", "trainer.accumulate_grad_batches=2", "ema.decay=0.9", "corpus.test=[]"]
        how += ["data.lengths_per_doubling=2", "data.batch_seconds=4", "data.max_utterances=2", "encoder.dropout=0.1"]
        how += ["init.frozen=[encoder.subsampling.*]", "init.frozen_steps=3", f"graph_memory={share}"]
        train(settings_with(*TINY, *tone_corpus(tones), *how, f"run_dir={run_dir}"))
        runs.append([*losses(run_dir), *(float(row["valid/loss"]) for row in metrics(run_dir) if row["valid/loss"])])
    assert runs[1] == pytest.approx(runs[0], rel=1e-4)
    messages = [record.message for record in caplog.records if "CUDA graphs of" in record.message]
    assert len(messages) == 2
    assert "; 0.0 % of" not in messages[1]


def test_recording_is_refused_on_a_cpu(tones: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"graph_memory must be 0 except on a CUDA device; got 0\.5 on device cpu\."):
        train(settings_with(*TINY, *tone_corpus(tones), "graph_memory=0.5", f"run_dir={tmp_path / 'run'}"))
