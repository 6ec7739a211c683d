"""Compilation of blocks during training: compiled code is used once it is ready, and a failure does no harm."""

import copy
import logging
import re
from collections import Counter
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asr.core.build import component
from asr.core.training import callbacks
from asr.core.training.compile_ahead import CompilationBeside, Inputs
from asr.core.training.compiled_blocks import CompiledBlocks
from asr.core.training.gradient_checkpointing import recompute_blocks
from asr.interfaces import Block, NamedBlocks
from asr.train import train
from tests.conftest import SMALLEST_ENCODERS, TINY, overridden, resolved, settings_with, tone_corpus
from tests.listener import Ear
from tests.test_recompute import SMALL
from tests.test_train import losses

NUM_MEL_BINS = 20


class CannotCompile(Exception):  # noqa: N818  # as the compiler's errors are called
    """The error that the stub compiler raises."""


class Stub:
    """A compiler that reports completion at query number `polls`, fails on request, and counts its calls."""

    def __init__(self, polls: int = 2, problem: str = "", fails_at_call: int | None = None) -> None:
        self.polls, self.problem, self.fails_at_call = polls, problem, fails_at_call
        self.asked, self.calls, self.stopped = 0, 0, False
        self.blocks: Counter[int] = Counter()
        self.inputs: Inputs | None = None

    def errors(self) -> tuple[type[Exception], ...]:
        return (CannotCompile,)

    def beside(self, block: nn.Module, inputs: Inputs) -> "Stub":
        self.inputs = inputs
        return self

    def outcome(self) -> str | None:
        self.asked += 1
        return None if self.asked < self.polls else self.problem

    def stop(self) -> None:
        self.stopped = True

    def program(self, block: nn.Module) -> Any:
        def run(block: nn.Module, *inputs: Any) -> Tensor:
            if self.calls == self.fails_at_call:
                raise CannotCompile("no compiler is installed\nand more lines")
            self.calls += 1
            self.blocks[id(block)] += 1
            return type(block).forward(block, *inputs)

        return run


@cache
def encoder_config(*overrides: str) -> dict[str, Any]:
    return overridden(resolved(*overrides)["encoder"], SMALL)


def make_encoder(*overrides: str) -> nn.Module:
    torch.manual_seed(0)
    return component("encoder", encoder_config(*overrides))(NUM_MEL_BINS)


def batch(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    frames = 90 + 9 * number  # frames / 8 never equals the number of utterances
    features = torch.randn(3 + 2 * (number % 2), frames, NUM_MEL_BINS, generator=generator)
    return features, torch.full((len(features),), frames)


def steps(encoder: nn.Module, compiled: CompiledBlocks | None, number: int = 6, world_size: int = 1) -> list[float]:
    """Train as Lightning does; return the losses."""
    optimizer = torch.optim.SGD(encoder.parameters(), lr=1e-2)
    callbacks: list[Any] = [compiled] if compiled else []
    for callback in callbacks:
        callback.on_train_start(SimpleNamespace(world_size=world_size), None)
    losses = []
    for step in range(number):
        for callback in callbacks:
            callback.on_train_batch_start(SimpleNamespace(global_step=step), None, None, step)
        torch.manual_seed(step)  # the seed of dropout
        loss = encoder(*batch(step)).out.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    for callback in callbacks:
        callback.on_train_end(None, None)
    return losses


def compile_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "compiled" in record.message]


def test_training_starts_uncompiled_and_switches_when_the_program_is_ready(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "asr")
    stub, encoder = Stub(polls=2), make_encoder()
    assert steps(encoder, CompiledBlocks(encoder, stub)) == steps(make_encoder(), None)
    begins, changes = compile_messages(caplog)
    assert begins == "the encoder's blocks are being compiled in the background; training starts uncompiled"
    # Compilation needs the input shapes of step 1, so it starts before step 2. The stub reports before step 3 that it
    # is not finished, and before step 4 that it is finished.
    assert re.fullmatch(r"step 4: the encoder's blocks run compiled, after \d+ s", changes)
    assert stub.blocks == {id(block): 3 for block in encoder.blocks}  # one call in each of the steps 4, 5 and 6
    assert stub.stopped
    encoder.eval()(*batch(0))
    with torch.no_grad():
        encoder.train()(*batch(0))
    assert stub.calls == 3 * len(encoder.blocks), "a validation does not use the compiled program"


@pytest.mark.parametrize(
    ("stub", "reason"),
    [
        (Stub(problem="there is no g++"), "there is no g++"),
        (Stub(fails_at_call=0), "no compiler is installed"),
        (Stub(fails_at_call=5), "no compiler is installed"),  # fails in the middle of a step, at another input length
    ],
    ids=["in the background", "at the first call", "at a later call"],
)
def test_training_continues_if_compilation_fails_and_one_line_names_the_reason(
    stub: Stub, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = make_encoder()
    assert steps(encoder, compiled := CompiledBlocks(encoder, stub)) == steps(make_encoder(), None)
    assert compile_messages(caplog) == [f"the encoder's blocks are not compiled: {reason}"]
    assert compiled.settled


def test_a_batch_of_one_utterance_neither_runs_compiled_nor_is_compiled_for() -> None:
    """torch would compile another program for it, in the middle of a step."""
    encoder = make_encoder()
    compiled = CompiledBlocks(encoder, stub := Stub(polls=1))
    compiled.on_train_start(SimpleNamespace(world_size=1), None)  # type: ignore[arg-type]
    features, lengths = batch(0)
    for step, number in enumerate([1, 3, 3, 1, 3]):
        compiled.on_train_batch_start(SimpleNamespace(global_step=step), None, None, step)  # type: ignore[arg-type]
        encoder(features[:number], lengths[:number])
    assert stub.inputs is not None
    assert stub.inputs.values[0].shape[0] == 3
    # The second batch has the first three utterances; the next batch starts the compilation, and the fifth is compiled.
    assert stub.calls == len(encoder.blocks)


class TwoDims(nn.Module):
    """Blocks of one class and two dimensions."""

    streaming = None

    def named_blocks(self) -> NamedBlocks:
        return [("0", Block(nn.Linear(3, 4), 4, 1)), ("1", Block(nn.Linear(4, 5), 5, 1))]


@pytest.mark.parametrize(
    ("encoder", "world_size", "reason"),
    [
        (Ear(), 1, "Ear has no blocks"),
        (make_encoder(), 2, "untested with several processes (2)"),
        (TwoDims(), 1, "the blocks have different classes or dimensions"),
        (
            make_encoder("encoder=conformer_streaming_xs"),
            1,
            "ConformerStreaming draws chunk sizes, which would need a program each",
        ),
    ],
    ids=["no blocks", "two processes", "two dimensions", "streaming"],
)
def test_blocks_that_cannot_be_compiled_are_reported_at_the_start(
    encoder: nn.Module, world_size: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    CompiledBlocks(encoder, stub := Stub()).on_train_start(SimpleNamespace(world_size=world_size), None)  # type: ignore[arg-type]
    assert compile_messages(caplog) == [f"the encoder's blocks are not compiled: {reason}"]
    assert stub.inputs is None


def test_blocks_with_recomputed_activations_are_not_compiled(caplog: pytest.LogCaptureFixture) -> None:
    encoder = make_encoder()
    recompute_blocks(encoder)
    assert steps(encoder, CompiledBlocks(encoder, Stub())) == steps(make_encoder(), None)
    assert compile_messages(caplog)[0].endswith("gradient_checkpointing=true runs them twice")


def test_a_copy_of_an_encoder_uses_its_own_weights() -> None:
    encoder = make_encoder()
    steps(encoder, CompiledBlocks(encoder, Stub(polls=1)))
    theirs = copy.deepcopy(encoder)
    torch.manual_seed(0)
    expected = theirs(*batch(1)).out
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.fill_(float("nan"))
    torch.manual_seed(0)
    again = theirs(*batch(1)).out
    assert expected.isfinite().all()
    assert torch.equal(again, expected)
    assert list(theirs.state_dict()) == list(make_encoder().state_dict())


@pytest.mark.parametrize("encoder", SMALLEST_ENCODERS)
def test_under_autocast_all_blocks_have_inputs_of_one_type(encoder: str) -> None:
    """Otherwise each type would be another program; this also holds after a tap that returns bfloat16."""
    net: Any = make_encoder(f"encoder={encoder}").train()
    types = []
    for _, block in net.named_blocks():
        block.module.register_forward_pre_hook(lambda _, inputs: types.append(inputs[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        net(*batch(0), taps={0: lambda x, padding_mask: x.bfloat16()})
    assert set(types) == {torch.float32}
    assert len(types) >= len(net.named_blocks()) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "encoder",
    [
        "conformer_xs",
        "transformer",
        pytest.param(
            "fast_conformer_s",
            marks=pytest.mark.xfail(
                strict=True, reason="an argument is a tensor in one call and None in another, so there are two programs"
            ),
        ),
    ],
)
def test_one_program_serves_all_blocks_and_lengths(encoder: str) -> None:
    """The losses also equal those of uncompiled blocks, up to rounding."""
    graphs = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    class Traced(Stub):
        def program(self, block: nn.Module) -> Any:
            return torch.compile(type(block).forward, backend=count, dynamic=True)

    no_dropout = [f"encoder={encoder}", "encoder.dropout=0", "encoder.subsampling.dropout=0"]
    net = make_encoder(*no_dropout)
    actual = steps(net, CompiledBlocks(net, Traced(polls=1)), number=8)
    assert actual == pytest.approx(steps(make_encoder(*no_dropout), None, number=8), rel=1e-5)
    assert len(graphs) == 1, "one graph serves three blocks, batches of three and five utterances, and eight lengths"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_training_with_the_real_compiler_gives_the_losses_of_uncompiled_training(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here torch's inductor compiles for the CPU with a C++ compiler."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    caplog.set_level(logging.INFO, "asr")
    runs = []
    for compile_blocks in ("false", "true"):
        if compile_blocks == "true":  # the run is so short that it must wait for the compiler
            monkeypatch.setattr(callbacks, "CompiledBlocks", Waiting)
        how = ["encoder=transformer", "trainer.max_steps=20", "corpus.test=[]", f"compile_blocks={compile_blocks}"]
        tiny = [override for override in TINY if "convolution" not in override]
        train(settings_with(*tiny, *tone_corpus(tones), *how, f"run_dir={tmp_path / compile_blocks}"))
        runs.append(losses(tmp_path / compile_blocks))
    lines = compile_messages(caplog)
    if "not compiled" in lines[-1]:
        pytest.skip(lines[-1])
    assert "run compiled" in lines[-1]
    assert runs[1] == pytest.approx(runs[0], rel=2e-3)
    assert runs[1] != runs[0]


class Waiting(CompiledBlocks):
    """Compiled blocks that wait before each step until compilation in the background is finished."""

    def on_train_batch_start(self, *given: Any) -> None:
        super().on_train_batch_start(*given)
        if isinstance(self._beside, CompilationBeside):
            self._beside._process.wait()
