"""Each hand-tuned operation has the outputs and gradients of the plain form in the same module."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from asr.base.kernels import (
    attention,
    block_attention,
    choice,
    depthwise,
    local_attention,
    relative_attention,
    strided_conv,
)
from asr.base.kernels.dropout import Dropout
from asr.base.kernels.relative_attention import Projections
from asr.lengths import padding_mask
from tests import forked
from tests.conftest import PATIENCE


def both(fast: object, plain: object, inputs: list[Tensor], *others: object) -> None:
    """Compare the results of the fast and the plain form, and the gradients of all inputs that require them."""
    outs = [form(*inputs, *others) for form in (fast, plain)]  # type: ignore[operator]
    weights = torch.randn_like(outs[0])
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    gradients = [torch.autograd.grad(out, wanted, weights) for out in outs]
    torch.testing.assert_close(*outs, rtol=0, atol=1e-11)  # float64; the forms sum in different orders
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("frames", [1, 5, 40])
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (7, 1), (31, 1), (7, 3)])
def test_the_fast_depthwise_convolution_equals_the_plain_one(frames: int, kernel: int, dilation: int) -> None:
    inputs = [drawn(3, frames, 8), drawn(8, 1, kernel), drawn(8)]
    both(depthwise.depthwise_as_image, depthwise.depthwise_plainly, inputs, dilation)


def convolve_in_bfloat16(threads: int, frames: int, dim: int) -> None:
    """Check that results, with and without autocast, are float32 results that are rounded once."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator).bfloat16() for shape in ((1, frames, dim), (dim, 1, 15), (dim,))]
    exact = [value.float() for value in inputs]
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = depthwise.depthwise(*exact)
    expected = depthwise.depthwise(*exact).bfloat16()
    for out in (depthwise.depthwise(*inputs), under_autocast):
        torch.testing.assert_close(out, expected, rtol=0, atol=0)
    strided, image = depthwise.DepthwiseConv2d(dim, 3, 2, 1).bfloat16(), inputs[0].view(1, dim, frames, 1)
    out = strided(image)
    torch.testing.assert_close(out, strided.float()(image.float()).bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize(("threads", "frames", "dim"), [(1, 101, 16), (2, 250, 144), (4, 300, 144)])
def test_a_depthwise_convolution_in_bfloat16_ends_for_shapes_for_which_onednn_does_not(
    threads: int, frames: int, dim: int
) -> None:
    """On processors with bfloat16 instructions, oneDNN generates code for these shapes forever."""
    process = forked.process(convolve_in_bfloat16, threads, frames, dim)
    process.start()
    process.join(PATIENCE)
    process.kill()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("block", [1, 500, 10**7])
def test_the_two_fast_convolutions_equal_the_plain_ones(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strided_conv, "CPU_BLOCK", block)
    lengths = torch.tensor([41, 12, 0])
    weights = [drawn(4, 1, 3, 3), drawn(4), drawn(4, 4, 3, 3), drawn(4)]
    features = drawn(3, 41, 10)
    there = ~padding_mask((lengths + 3) // 4, 11)[:, :, None, None]

    def fast(*inputs: Tensor) -> Tensor:
        return strided_conv.convolve_twice_by_blocks(inputs[0], lengths, *inputs[1:]) * there

    def plain(*inputs: Tensor) -> Tensor:
        return strided_conv.convolve_twice_plainly(inputs[0], lengths, *inputs[1:]) * there

    both(fast, plain, [features, *weights])


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (30, 30), (4, 12)])
def test_fast_attention_equals_the_plain_form(queries: int, keys: int) -> None:
    inputs = [drawn(2, 3, number, 4) for number in (queries, keys, keys)]
    hidden = torch.rand(2, 1, keys) < 0.3
    hidden[..., 0] = False
    both(attention.attend_fused, attention.attend_plainly, inputs, hidden, Dropout(0.0))


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (6, 6), (30, 30), (4, 12)])
@pytest.mark.parametrize("block", [1, 200, 10**6])
def test_fast_relative_attention_equals_the_plain_form(
    queries: int, keys: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relative_attention, "CPU_BLOCK", block)
    monkeypatch.setattr(relative_attention, "MIN_QUERIES", 2)
    inputs = [*(drawn(2, 3, number, 4) for number in (queries, queries, keys, keys)), drawn(3, queries + keys - 1, 4)]
    hidden = torch.rand(2, 1, keys) < 0.3
    hidden[..., 0] = False

    def fast(*inputs: Tensor) -> Tensor:
        return relative_attention.attend_by_blocks(Projections(*inputs), hidden, Dropout(0.0))

    def plain(*inputs: Tensor) -> Tensor:
        return relative_attention.attend_plainly(Projections(*inputs), hidden, Dropout(0.0))

    both(fast, plain, inputs)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (16, 16), (30, 30), (4, 12)])
def test_relative_attention_of_a_compiled_program_equals_the_plain_form(queries: int, keys: int) -> None:
    inputs = [*(drawn(2, 3, number, 4) for number in (queries, queries, keys, keys)), drawn(3, queries + keys - 1, 4)]
    hidden = torch.rand(2, 1, keys) < 0.3
    hidden[..., 0] = False

    def fast(*inputs: Tensor) -> Tensor:
        return relative_attention.attend_at_once(Projections(*inputs), hidden, Dropout(0.0))

    def plain(*inputs: Tensor) -> Tensor:
        return relative_attention.attend_plainly(Projections(*inputs), hidden, Dropout(0.0))

    both(fast, plain, inputs)


@pytest.mark.parametrize("frames", [1, 4, 9, 30])
@pytest.mark.parametrize("width", [1, 4, 40])
@pytest.mark.parametrize("form", [local_attention.attend_near_at_once, local_attention.attend_near_by_blocks])
def test_fast_local_attention_equals_the_plain_form(form: Callable[..., Tensor], frames: int, width: int) -> None:
    inputs = [*(drawn(2, 3, frames, 4) for _ in range(4)), drawn(3, 4 * width - 1, 4)]
    padding = padding_mask(torch.tensor([frames, (frames + 1) // 2]), frames)
    there = ~padding[:, None, :, None]

    def fast(*inputs: Tensor) -> Tensor:
        return form(Projections(*inputs), padding, Dropout(0.0)) * there

    def plain(*inputs: Tensor) -> Tensor:
        return local_attention.attend_near_plainly(Projections(*inputs), padding, Dropout(0.0)) * there

    both(fast, plain, inputs)


@pytest.mark.parametrize("frames", [1, 4, 9, 30])
@pytest.mark.parametrize("width", [1, 4, 40])
def test_attention_block_by_block_equals_the_plain_form(frames: int, width: int) -> None:
    inputs = [*(drawn(2, 3, frames, 4) for _ in range(4)), drawn(3, 2 * width - 1, 4)]
    padding = padding_mask(torch.tensor([frames, (frames + 1) // 2]), frames)
    there = ~padding[:, None, :, None]

    def fast(*inputs: Tensor) -> Tensor:
        return block_attention.attend_block_by_block(Projections(*inputs), padding, Dropout(0.0)) * there

    def plain(*inputs: Tensor) -> Tensor:
        return block_attention.attend_in_blocks_plainly(Projections(*inputs), padding, Dropout(0.0)) * there

    both(fast, plain, inputs)


def test_export_and_tracing_use_the_plain_forms() -> None:
    answers: list[bool] = []

    class Asks(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            answers.append(choice.wants_plain())
            return x + 1

    assert not choice.wants_plain()
    torch.export.export(Asks(), (torch.zeros(1),))
    torch.jit.trace(Asks(), (torch.zeros(1),))
    assert answers
    assert all(answers[:2])


def test_a_compiled_program_may_use_kernels_that_an_exported_one_may_not() -> None:
    answers: dict[str, tuple[bool, bool]] = {}

    class Asks(torch.nn.Module):
        def forward(self, x: Tensor, what: str) -> Tensor:
            answers[what] = choice.wants_plain(), choice.is_compiled()
            return x + 1

    Asks()(torch.zeros(1), "eager")
    torch.export.export(Asks(), (torch.zeros(1), "exported"))
    torch.compile(Asks(), backend="eager")(torch.zeros(1), "compiled")
    assert answers == {"eager": (False, False), "exported": (True, False), "compiled": (True, True)}
