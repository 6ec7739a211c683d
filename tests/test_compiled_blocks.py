"""Compiled blocks train like uncompiled ones, with one program for all blocks and lengths; failures are one line."""

import copy
import logging
from functools import cache, partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asr.core.build import component
from asr.core.training.compiled_blocks import compile_blocks
from asr.core.training.gradient_checkpointing import recompute_blocks
from asr.errors import InputError
from asr.interfaces import Block, NamedBlocks
from asr.train import train
from tests.conftest import SMALLEST_ENCODERS, TINY, overridden, resolved, settings_with, tone_corpus
from tests.listener import Ear
from tests.refusals import refused
from tests.test_recompute import SMALL
from tests.test_train import losses

NUM_MEL_BINS = 20
NO_DROPOUT = ["encoder.block.dropout=0", "encoder.subsampling.dropout=0"]


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


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that a stub of the compiler, which runs them as they are, has received."""
    received = []

    def count(graph: Any, inputs: Any) -> Any:
        received.append(graph)
        return graph.forward

    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend=count))
    torch.compiler.reset()
    return received


def steps(encoder: nn.Module, number: int = 8) -> list[float]:
    """Train; return the losses."""
    optimizer = torch.optim.SGD(encoder.parameters(), lr=1e-2)
    losses = []
    for step in range(number):
        loss = encoder(*batch(step)).out.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def compile_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "blocks are" in record.message]


@pytest.mark.parametrize(
    ("encoder", "number"),
    [
        ("transformer", 1),
        pytest.param("conformer_xs", 1, marks=pytest.mark.slow),
        # An argument of a block is a tensor in one call and None in another.
        pytest.param("fast_conformer_s", 2, marks=pytest.mark.slow),
    ],
)
def test_one_program_serves_all_blocks_and_lengths_and_gives_the_losses_of_uncompiled_blocks(
    encoder: str, number: int, graphs: list[Any]
) -> None:
    """The losses are equal up to rounding."""
    net, plain = (make_encoder(f"encoder={encoder}", *NO_DROPOUT) for _ in range(2))
    compile_blocks(net, world_size=1)
    assert steps(net) == pytest.approx(steps(plain), rel=1e-5)
    assert len(graphs) == number, "three blocks, batches of three and five utterances, and eight lengths share them"
    assert list(net.state_dict()) == list(plain.state_dict())
    with torch.no_grad():
        for step in range(4):
            net.eval()(*batch(step))
    assert len(graphs) == 2 * number, "a validation needs one without gradients"


class TwoDims(nn.Module):
    """Blocks of one class and two dimensions."""

    streaming = None

    def named_blocks(self) -> NamedBlocks:
        return [("0", Block(nn.Linear(3, 4), 4, 1)), ("1", Block(nn.Linear(4, 5), 5, 1))]


@pytest.mark.parametrize(
    ("encoder", "world_size", "reason"),
    [
        (Ear(), 1, "the encoder has no blocks"),
        (make_encoder(), 2, "untested with several processes (2)"),
        (TwoDims(), 1, "they have different classes, dimensions or strides"),
        (
            make_encoder("encoder=conformer_streaming_xs"),
            1,
            "the encoder draws chunk sizes, which would need a program each",
        ),
    ],
    ids=["no blocks", "two processes", "two dimensions", "streaming"],
)
def test_blocks_that_cannot_be_compiled_are_reported_and_stay_uncompiled(
    encoder: Any, world_size: int, reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(nn.Module, "compile")
    compile_blocks(encoder, world_size)
    assert compile_messages(caplog) == [f"the encoder's blocks are not compiled: {reason}"]


def test_blocks_with_recomputed_activations_are_not_compiled(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(nn.Module, "compile")
    encoder: Any = make_encoder()
    recompute_blocks(encoder)
    compile_blocks(encoder, world_size=1)
    [message] = compile_messages(caplog)
    assert message.endswith("gradient_checkpointing=true runs them twice")


def test_a_copy_of_an_encoder_uses_its_own_weights(graphs: list[Any]) -> None:
    encoder: Any = make_encoder("encoder=transformer", *NO_DROPOUT)
    compile_blocks(encoder, world_size=1)
    steps(encoder, number=2)
    theirs = copy.deepcopy(encoder)
    expected = theirs(*batch(1)).out
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.fill_(float("nan"))
    assert expected.isfinite().all()
    assert torch.equal(theirs(*batch(1)).out, expected)
    assert list(theirs.state_dict()) == list(encoder.state_dict())
    assert len(graphs) == 1


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


def run(corpus: Path, run_dir: Path, *overrides: str) -> list[float]:
    tiny = [override for override in TINY if "convolution" not in override]
    how = ["encoder=transformer", "corpus.test=[]", f"run_dir={run_dir}", *overrides]
    train(settings_with(*tiny, *tone_corpus(corpus), *how))
    return losses(run_dir)


def test_a_failure_of_the_compiler_ends_the_training_with_one_line(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("there is no g++\nand more lines")

    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend=fail))
    torch.compiler.reset()
    with refused(InputError, "compile_blocks ... false; got true", cure="compile_blocks=false") as message:
        run(tones, tmp_path, "compile_blocks=true", "trainer.max_steps=2")
    assert "there is no g++" in str(message.value)
    assert "more lines" not in str(message.value)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_training_with_the_real_compiler_gives_the_losses_of_uncompiled_training_also_when_resumed(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here torch's inductor compiles for the CPU with a C++ compiler."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    caplog.set_level(logging.INFO, "asr")
    end = ["trainer.max_epochs=-1", "trainer.max_steps=20", "schedule=noam", "schedule.warmup_steps=5"]
    expected = run(tones, tmp_path / "plain", *end)
    compiled = tmp_path / "compiled"
    try:
        run(tones, compiled, *end, "compile_blocks=true", "trainer.max_steps=10")
    except InputError as error:
        pytest.skip(str(error))
    [message] = compile_messages(caplog)
    assert "not compiled" not in message
    allow = "resume.allow=[trainer.max_steps]"
    actual = run(tones, compiled, *end, "compile_blocks=true", allow)
    assert actual == pytest.approx(expected, rel=2e-3)
    assert actual != expected
