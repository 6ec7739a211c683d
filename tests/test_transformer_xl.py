"""The Transformer-XL: encoding by segments with memory equals plain loops in one pass with the corresponding mask."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.components.encoder import transformer_xl
from asr.components.encoder.block.activation.gelu import GELU
from asr.components.encoder.block.residual.post_norm import PostNorm
from asr.components.encoder.block.residual.pre_norm import PreNorm
from asr.components.encoder.block.transformer_xl_block import TransformerXLBlock
from asr.components.encoder.transformer_xl import TransformerXL
from asr.core.build import component
from asr.errors import InputError
from tests.conftest import resolved
from tests.refusals import refused
from tests.test_attention import encoding
from tests.test_transformer import NoSubsampling

DIM, HEADS, LAYERS = 8, 2, 2


def make(segment: int, training_memory: int, memory: int, residual: Any = PreNorm) -> TransformerXL:
    """Make an encoder in float64; no parameter has its initial value."""
    encoder = TransformerXL(
        DIM,
        dim=DIM,
        num_layers=LAYERS,
        segment=segment,
        training_memory=training_memory,
        memory=memory,
        subsampling=NoSubsampling,
        block=partial(
            TransformerXLBlock, num_heads=HEADS, feed_forward_factor=2, dropout=0.0, activation=GELU, residual=residual
        ),
    ).double()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return encoder


def attention_by_loops(attention: Any, x: Tensor, remembered: Tensor, segment: int, memory: int) -> Tensor:
    """Compute attention of one utterance (T, D), term by term, over visible frames: arXiv:1901.02860, section 3.3."""
    size = DIM // HEADS
    query, key, value = attention.qkv(x).split(DIM, dim=-1)
    _, old_key, old_value = attention.qkv(remembered).split(DIM, dim=-1)
    rows = []
    for i in range(len(x)):
        start = i // segment * segment
        seen = range(max(0, start - memory), min(len(x), start + segment))
        mixed = []
        for h in range(HEADS):
            head = slice(h * size, (h + 1) * size)
            q, u, v = query[i, head], attention.u[h, 0], attention.v[h, 0]
            scores = []
            for j in seen:
                k = (key if j >= start else old_key)[j, head]
                r = attention.position(torch.tensor(encoding(i - j, DIM), dtype=torch.float64))[head]
                scores.append((q @ k + q @ r + u @ k + v @ r) / math.sqrt(size))
            weights = torch.stack(scores).softmax(dim=0)
            values = [(value if j >= start else old_value)[j, head] for j in seen]
            mixed.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
        rows.append(torch.cat(mixed))
    return attention.output(torch.stack(rows))


def by_loops(encoder: TransformerXL, x: Tensor) -> Tensor:
    """Encode a whole utterance in one pass, (T, D) to (T, D); frames before a frame's segment have no gradient."""
    memory = encoder.training_memory if encoder.training else encoder.memory
    for block in encoder.blocks:
        norm, old = block.norm_attention, x.detach()
        if isinstance(block.residual, PreNorm):
            x = x + attention_by_loops(block.attention, norm(x), norm(old), encoder.segment, memory)
            x = x + block.feed_forward(block.norm_feed_forward(x))
        else:
            x = norm(x + attention_by_loops(block.attention, x, old, encoder.segment, memory))
            x = block.norm_feed_forward(x + block.feed_forward(x))
    return encoder.norm_output(x)


@pytest.mark.parametrize(
    ("segment", "training_memory", "memory", "residual"),
    [
        (3, 2, 3, PreNorm),
        (3, 0, 4, PostNorm),
        (2, 3, 7, PreNorm),
        (1, 1, 1, PostNorm),
        (20, 5, 5, PreNorm),
        (4, 100, 0, PostNorm),
    ],
)
def test_outputs_and_gradients_by_segments_equal_those_of_one_pass_with_the_mask(
    segment: int, training_memory: int, memory: int, residual: Any
) -> None:
    encoder = make(segment, training_memory, memory, residual)
    lengths = [8, 3]
    x = torch.randn(2, 8, DIM, dtype=torch.float64, requires_grad=True)
    for training in (True, False):
        encoder.train(training)
        out = encoder(x, torch.tensor(lengths)).out
        for number, length in enumerate(lengths):
            plain = by_loops(encoder, x[number, :length])
            # The encoder computes its positions in float32.
            torch.testing.assert_close(out[number, :length], plain, rtol=0, atol=1e-5)
            weights = torch.randn_like(plain)
            wanted = [x, *encoder.parameters()]
            ours, expected = (
                torch.autograd.grad((frames * weights).sum(), wanted, retain_graph=True)
                for frames in (out[number, :length], plain)
            )
            for gradient, reference in zip(ours, expected, strict=True):
                torch.testing.assert_close(gradient, reference, rtol=0, atol=1e-4)


@pytest.mark.parametrize("frames", [1, 6, 7, 23, 60])
@torch.no_grad()
def test_the_one_pass_form_gives_equal_outputs_and_taps(frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = make(segment=6, training_memory=4, memory=9).eval()
    x, lengths = torch.randn(2, frames, DIM, dtype=torch.float64), torch.tensor([frames, (frames + 1) // 2])
    taps = {0: lambda x, padding: x.masked_fill(padding[:, :, None], 0.0).cos()}
    segments = encoder(x, lengths, taps)
    monkeypatch.setattr(transformer_xl, "wants_plain", lambda: True)
    whole = encoder(x, lengths, taps)
    for number, length in enumerate(lengths):
        for ours, expected in ((segments.out, whole.out), (segments.blocks[0].out, whole.blocks[0].out)):
            torch.testing.assert_close(ours[number, :length], expected[number, :length], rtol=0, atol=1e-12)


def test_frames_before_a_segment_have_no_gradient_but_affect_the_output() -> None:
    encoder = make(segment=3, training_memory=3, memory=3)
    x = torch.randn(1, 6, DIM, dtype=torch.float64, requires_grad=True)
    out = encoder(x, torch.tensor([6])).out
    out[:, 3:].square().sum().backward()
    assert not x.grad[:, :3].any()
    assert x.grad[:, 3:].all()
    changed = torch.cat([x[:, :3].cos(), x[:, 3:]], dim=1)
    assert not torch.allclose(encoder(changed, torch.tensor([6])).out[:, 3:], out[:, 3:])


def test_a_dim_that_is_not_a_multiple_of_num_heads_is_an_error_that_names_both() -> None:
    config = {**resolved("encoder=transformer_xl")["encoder"], "dim": 18}
    must = "encoder.dim ... dim=18 ... num_heads=4"
    with refused(InputError, must):
        component("encoder", config)(80)
