"""Padding changes no loss of any head in conf/head; intermediate and self-conditioned CTC equal their formulas."""

from typing import Any

import pytest
import torch
from torch import Tensor

from asr.apps.check.network import NUM_MEL_BINS, model_of, unlike_new
from asr.apps.check.padding import check_losses, losses_of
from asr.components.head.ctc_intermediate import evenly_spaced
from asr.core.build import component
from asr.core.recognition.model import Model
from asr.errors import InputError
from asr.interfaces import Encoded
from tests.conftest import CONF, block_dims, resolved
from tests.refusals import refused
from tests.targets import targets_of

HEADS = sorted(path.stem for path in (CONF / "head").glob("*.yaml"))
DIM, VOCAB_SIZE = 8, 5
SMALL = [
    "encoder.dim=8",
    "encoder.block.num_heads=2",
    "encoder.num_layers=4",
    "encoder.block.convolution.kernel_size=3",
]


def small_model(head: str) -> Model:
    """Make a small Conformer with a head; no parameter has its initial value."""
    torch.manual_seed(0)
    config = resolved(f"head={head}", *SMALL, "encoder/block/norm=layer_norm", "encoder.subsampling.num_channels=2")
    return unlike_new(model_of(config["encoder"], config["head"]).double().eval(), noise=0.1)


@pytest.mark.parametrize("head", HEADS)
def test_losses_and_gradients_are_equal_alone_and_in_any_batch(head: str) -> None:
    check_losses(small_model(head))


def plain_ctc(encoder_out: Tensor, weight: Tensor, bias: Tensor, tokens: list[int]) -> Tensor:
    """Compute -log p(tokens) from encoder_out (T', D) by the forward recursion of CTC."""
    log_probs = (encoder_out @ weight.T + bias).log_softmax(dim=-1)
    states = [0]
    for token in tokens:
        states += [token, 0]
    nothing = torch.tensor(float("-inf"), dtype=torch.float64)
    alpha = [log_probs[0, state] if place < 2 else nothing for place, state in enumerate(states)]
    for frame in log_probs[1:]:
        before, alpha = alpha, []
        for place, state in enumerate(states):
            reach = [before[place]]
            if place >= 1:
                reach.append(before[place - 1])
            if place >= 2 and state not in (0, states[place - 2]):
                reach.append(before[place - 2])
            alpha.append(torch.stack(reach).logsumexp(dim=0) + frame[state])
    return -torch.stack(alpha[-2:]).logsumexp(dim=0)


@pytest.mark.parametrize("head", ["ctc_intermediate", "ctc_self_conditioned"])
def test_the_intermediate_loss_equals_the_papers_sum_over_block_outputs(head: str) -> None:
    net = small_model(head)
    settings = resolved(f"head={head}")["head"]
    frames = torch.randn(1, 33, NUM_MEL_BINS, dtype=torch.float64)
    lengths = torch.tensor([33])
    x, _ = net.encoder.subsampling(frames, lengths)
    padding = torch.zeros(1, x.shape[1], dtype=torch.bool)
    positions = net.encoder.first_block.positions(x)
    linear = net.head.frame_head.linear
    tapped = [place * 4 // (settings["num_intermediate"] + 1) for place in range(1, settings["num_intermediate"] + 1)]
    intermediate = []
    for number, block in enumerate(net.encoder.blocks, start=1):
        x = block(x, positions, padding)
        if number in tapped:
            intermediate.append(plain_ctc(x[0], linear.weight, linear.bias, [1, 2, 2]))
            if head == "ctc_self_conditioned":
                condition = net.head.condition
                x = x + (x @ linear.weight.T + linear.bias).softmax(dim=-1) @ condition.weight.T + condition.bias
    last = plain_ctc(x[0], linear.weight, linear.bias, [1, 2, 2])
    weight = settings["weight"]
    expected = (1 - weight) * last + weight * sum(intermediate) / len(intermediate)
    losses = losses_of(net, (frames, lengths), [[1, 2, 2]])
    torch.testing.assert_close(losses["loss"][0], expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(losses["last_ctc"][0], last, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["ctc_intermediate", "ctc_self_conditioned"])
def test_losses_of_all_blocks_equal_separate_losses_each_with_the_frames_of_its_own_block(name: str) -> None:
    settings = resolved(f"head={name}", "head.num_intermediate=2")["head"]
    head = component("head", settings)(DIM, block_dims(DIM), VOCAB_SIZE).double()
    targets = targets_of(torch.tensor([[1, 2], [2, 0]]), torch.tensor([2, 1]))
    blocks = {
        index: Encoded(torch.randn(2, frames, DIM, dtype=torch.float64, requires_grad=True), torch.tensor(lengths), {})
        for index, frames, lengths in zip(head.taps, (11, 5), ([11, 6], [3, 5]), strict=True)
    }  # the first has twice the frame rate
    encoded = Encoded(torch.randn(2, 5, DIM, dtype=torch.float64, requires_grad=True), torch.tensor([5, 3]), blocks)
    losses = head.losses(encoded, targets)
    last = head.frame_head.losses(encoded, targets)["loss"]
    apart = [head.frame_head.losses(block, targets)["loss"] for block in blocks.values()]
    weight = settings["weight"]
    expected = (1 - weight) * last + weight * torch.stack(apart).mean(dim=0)
    torch.testing.assert_close(losses["last_ctc"], last, rtol=0, atol=1e-10)
    torch.testing.assert_close(losses["loss"], expected, rtol=0, atol=1e-10)
    inputs = [encoded.out, *(block.out for block in blocks.values()), *head.frame_head.parameters()]
    gradients = [torch.autograd.grad(loss.sum(), inputs) for loss in (losses["loss"], expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("num_blocks", "number", "expected"), [(16, 1, [7]), (18, 5, [2, 5, 8, 11, 14]), (5, 1, [1]), (2, 1, [0])]
)
def test_intermediate_blocks_divide_the_encoder_evenly(num_blocks: int, number: int, expected: list[int]) -> None:
    assert evenly_spaced(num_blocks, number) == expected


def test_more_intermediate_blocks_than_available_are_refused_in_one_line() -> None:
    with refused(InputError, "head.num_intermediate; got 3 and 3 blocks"):
        evenly_spaced(3, 3)


def test_the_output_of_a_tapped_block_is_returned_unchanged_and_the_next_block_gets_the_changed_output() -> None:
    net = small_model("ctc")
    frames, lengths = torch.randn(2, 40, NUM_MEL_BINS, dtype=torch.float64), torch.tensor([40, 23])
    seen: list[Any] = []

    def nothing_left(x: Tensor, padding_mask: Tensor) -> Tensor:
        seen.append((x, padding_mask))
        return torch.zeros_like(x)

    encoded = net.encoder(frames, lengths, {1: nothing_left})
    plain = net.encoder(frames, lengths)
    assert isinstance(plain, Encoded)
    assert plain.blocks == {}
    assert torch.equal(encoded.blocks[1].out, seen[0][0])
    assert seen[0][1].sum() == encoded.lengths.max() - encoded.lengths.min()
    valid = ~seen[0][1]
    assert not torch.allclose(encoded.out[valid], plain.out[valid])
