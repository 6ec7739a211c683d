"""Rotary attention compared with plain loops."""

import math

import torch
from torch import Tensor

from asr.components.encoder.block.attention.rotary_attention import RotaryAttention
from asr.errors import InputError
from asr.lengths import padding_mask
from tests.refusals import refused

DIM, HEADS = 12, 3


def attention_by_loops(attention: RotaryAttention, x: Tensor, lengths: list[int]) -> Tensor:
    """Apply the matrices of arXiv:2104.09864, equations 14 to 16; frames after an utterance's end stay zero."""
    size = DIM // HEADS
    query, key, value = attention.qkv(x).split(DIM, dim=-1)

    def rotation(frame: int) -> Tensor:
        matrix = torch.zeros(size, size, dtype=torch.float64)
        for i in range(size // 2):
            angle = frame * 10000 ** (-2 * i / size)
            matrix[2 * i, 2 * i] = matrix[2 * i + 1, 2 * i + 1] = math.cos(angle)
            matrix[2 * i, 2 * i + 1], matrix[2 * i + 1, 2 * i] = -math.sin(angle), math.sin(angle)
        return matrix

    mixed = torch.zeros_like(x)
    for b, length in enumerate(lengths):
        for head in (slice(first, first + size) for first in range(0, DIM, size)):
            for i in range(length):
                turned = rotation(i) @ query[b, i, head]
                scores = [turned @ (rotation(j) @ key[b, j, head]) / math.sqrt(size) for j in range(length)]
                for j, weight in enumerate(torch.stack(scores).softmax(dim=0)):
                    mixed[b, i, head] += weight * value[b, j, head]
    return attention.output(mixed)


def both(lengths: list[int], x: Tensor, weights: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return valid frames and gradients of the attention and of the loops."""
    torch.manual_seed(1)
    attention = RotaryAttention(DIM, HEADS, 0.0, bias=True).double()
    padding = padding_mask(torch.tensor(lengths), x.shape[1])
    outs = attention(x, attention.positions(x), padding), attention_by_loops(attention, x, lengths)
    wanted = [x, *attention.parameters()]
    ours, loops = (
        [out[~padding], *torch.autograd.grad((out * weights)[~padding].sum(), wanted, retain_graph=True)]
        for out in outs
    )
    return ours, loops


def test_attention_and_its_gradients_equal_the_equations_of_the_paper_in_plain_loops() -> None:
    x = torch.randn(3, 7, DIM, dtype=torch.float64, requires_grad=True)
    ours, loops = both([7, 1, 4], x, torch.randn(3, 7, DIM, dtype=torch.float64))
    for actual, expected in zip(ours, loops, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)  # float64 rounding


@torch.no_grad()
def test_scores_depend_only_on_the_distance() -> None:
    attention = RotaryAttention(DIM, HEADS, 0.0, bias=True).double().eval()
    x, nothing_padded = torch.randn(1, 5, DIM, dtype=torch.float64), torch.zeros(1, 5, dtype=torch.bool)
    positions = attention.positions(torch.zeros(1, 1005, DIM, dtype=torch.float64))
    first, later = (attention(x, positions[:, place : place + 5], nothing_padded) for place in (0, 1000))
    torch.testing.assert_close(later, first, rtol=0, atol=1e-12)
    assert not torch.allclose(attention(x, positions[:, ::2][:, :5], nothing_padded), first), (
        "scores depend on the distance"
    )


@torch.no_grad()
def test_dropout_of_the_attention_weights_is_active_only_in_training() -> None:
    attention = RotaryAttention(DIM, HEADS, 0.5, bias=True)
    x, padding = torch.randn(1, 6, DIM), torch.zeros(1, 6, dtype=torch.bool)
    positions = attention.positions(x)
    plain = attention.eval()(x, positions, padding)
    assert torch.equal(attention(x, positions, padding), plain)
    attention.train()
    outs = torch.stack([attention(x, positions, padding) for _ in range(2000)])
    assert not torch.equal(outs[0], outs[1])
    torch.testing.assert_close(outs.mean(dim=0), plain, rtol=0, atol=0.05)  # dropout preserves the mean of the weights


def test_an_odd_number_of_channels_per_head_is_refused_in_one_line() -> None:
    must = "encoder.dim ... encoder.block.num_heads ... dim=18 ... num_h"
    with refused(InputError, must):
        RotaryAttention(18, 6, 0.0, bias=True)
