"""Attention with relative positions, compared with plain loops and with another implementation."""

import math
from typing import TypeVar

import pytest
import torch
from torch import Tensor
from transformers.models.parakeet.configuration_parakeet import ParakeetEncoderConfig
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderAttention

from asr.base.kernels import relative_attention
from asr.base.kernels.positions import relative_positions, sinusoids
from asr.base.kernels.relative_attention import relative_shift
from asr.components.encoder.block.attention.local_attention import LocalAttention
from asr.components.encoder.block.attention.relative_attention import RelativeAttention
from asr.lengths import padding_mask

DIM, HEADS = 12, 3
Attention = TypeVar("Attention", RelativeAttention, LocalAttention)


def random_attention(dim: int = DIM, num_heads: int = HEADS, dropout: float = 0.0) -> RelativeAttention:
    return random(RelativeAttention(dim, num_heads, dropout, bias=True))


def random(attention: Attention) -> Attention:
    """Convert a layer to float64 and randomize its biases u and v, because their initial zeros could hide errors."""
    torch.nn.init.normal_(attention.u)
    torch.nn.init.normal_(attention.v)
    return attention.double().eval()


def encoding(distance: int, dim: int) -> list[float]:
    """Encode a distance d as in arXiv:1706.03762, section 3.5.

    Channels 2i and 2i + 1 are the sine and the cosine of d / 10000^(2i / dim).
    """
    angles = [distance / 10000 ** (2 * (channel // 2) / dim) for channel in range(dim)]
    return [math.cos(angle) if channel % 2 else math.sin(angle) for channel, angle in enumerate(angles)]


def encodings(num_frames: int, dim: int) -> Tensor:
    """Return the encodings of the distances T-1 .. -(T-1), (2T - 1, dim) float64."""
    distances = range(num_frames - 1, -num_frames, -1)
    return torch.tensor([encoding(distance, dim) for distance in distances], dtype=torch.float64)


def attention_by_loops(
    attention: RelativeAttention | LocalAttention, x: Tensor, lengths: list[int], context: float = math.inf
) -> Tensor:
    """Compute attention (arXiv:1901.02860, section 3.3) term by term; padded frames do not take part."""
    batch, dim = len(x), x.shape[-1]
    heads, size = attention.num_heads, dim // attention.num_heads
    query, key, value = attention.qkv(x).split(dim, dim=-1)
    mixed = torch.zeros_like(x)
    for b in range(batch):
        for h in range(heads):
            head = slice(h * size, (h + 1) * size)
            u, v = attention.u[h, 0], attention.v[h, 0]
            for i in range(lengths[b]):
                q = query[b, i, head]
                scores = []
                near = [j for j in range(lengths[b]) if abs(i - j) <= context]
                for j in near:
                    k = key[b, j, head]
                    r = attention.position(torch.tensor(encoding(i - j, dim), dtype=torch.float64))[head]
                    a, b_, c, d = q @ k, q @ r, u @ k, v @ r  # the paper's terms (a) to (d)
                    scores.append((a + b_ + c + d) / math.sqrt(size))
                weights = torch.stack(scores).softmax(dim=0)
                for weight, j in zip(weights, near, strict=True):
                    mixed[b, i, head] += weight * value[b, j, head]
    return attention.output(mixed)


@pytest.mark.parametrize("keys", range(1, 10))
@pytest.mark.parametrize("queries", range(1, 10))
def test_relative_shift_puts_the_score_of_distance_i_minus_j_at_query_i_and_key_j(queries: int, keys: int) -> None:
    scores = torch.randn(2, 3, queries, queries + keys - 1)
    shifted = relative_shift(scores)
    assert shifted.shape == (2, 3, queries, keys)
    column = {distance: number for number, distance in enumerate(range(queries - 1, -keys, -1))}
    for i in range(queries):
        for j in range(keys):
            assert torch.equal(shifted[:, :, i, j], scores[:, :, i, column[i - j]])


@torch.no_grad()
def test_attention_equals_the_formula_of_the_paper_in_plain_loops() -> None:
    attention = random_attention()
    lengths = [7, 1, 4]
    x = torch.randn(3, 7, DIM, dtype=torch.float64)
    out = attention(x, encodings(7, DIM), padding_mask(torch.tensor(lengths), 7))
    expected = attention_by_loops(attention, x, lengths)
    for b, length in enumerate(lengths):
        torch.testing.assert_close(out[b, :length], expected[b, :length], rtol=0, atol=1e-12)  # float64 rounding


# The maximum number of scores per block. A block has some queries of an utterance, some utterances, or the whole batch.
@pytest.mark.parametrize("block", [1, 50, 100, 200, 10**6])
@pytest.mark.parametrize("frames", [1, 2, 7, 24])
def test_outputs_and_gradients_of_attention_in_blocks_equal_those_in_one_block(
    frames: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = random_attention()
    x = torch.randn(3, frames, DIM, dtype=torch.float64, requires_grad=True)
    padding = padding_mask(torch.tensor([frames, 1, (frames + 1) // 2]), frames)
    weights = torch.randn(3, frames, DIM, dtype=torch.float64).masked_fill(padding[:, :, None], 0.0)

    def outcome() -> list[Tensor]:
        out = attention(x, attention.positions(x), padding)
        return [out[~padding], *torch.autograd.grad((out * weights).sum(), [x, *attention.parameters()])]

    whole = outcome()
    monkeypatch.setattr(relative_attention, "CPU_BLOCK", block)
    monkeypatch.setattr(relative_attention, "MIN_QUERIES", 2)
    for ours, expected in zip(outcome(), whole, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)  # sums of 24 numbers in another order


@pytest.mark.parametrize("context", [1, 2, 3, 8, 20])
@torch.no_grad()
def test_local_attention_equals_the_formula_of_the_paper_over_nearby_frames(context: int) -> None:
    attention = random(LocalAttention(DIM, HEADS, 0.0, context=context, bias=True))
    lengths = [11, 1, 6]
    x = torch.randn(3, 11, DIM, dtype=torch.float64)
    out = attention(x, encodings(2 * context, DIM), padding_mask(torch.tensor(lengths), 11))
    expected = attention_by_loops(attention, x, lengths, context)
    for b, length in enumerate(lengths):
        torch.testing.assert_close(out[b, :length], expected[b, :length], rtol=0, atol=1e-12)


@torch.no_grad()
def test_local_attention_with_a_wide_context_equals_relative_attention() -> None:
    everywhere = random_attention()
    local = LocalAttention(DIM, HEADS, 0.0, context=9, bias=True).double().eval()
    local.load_state_dict(everywhere.state_dict())
    x, padding = torch.randn(2, 10, DIM, dtype=torch.float64), padding_mask(torch.tensor([10, 4]), 10)
    outs = [attention(x, attention.positions(x), padding)[~padding] for attention in (everywhere, local)]
    torch.testing.assert_close(*outs, rtol=0, atol=1e-12)


@torch.no_grad()
def test_attention_equals_that_of_parakeet_in_transformers() -> None:
    config = ParakeetEncoderConfig(
        hidden_size=16, num_attention_heads=4, attn_implementation="sdpa", attention_dropout=0.0
    )
    theirs = ParakeetEncoderAttention(config, layer_idx=0).double().eval()
    ours = random_attention(16, 4)
    query, key, value = ours.qkv.weight.chunk(3)
    query_bias, key_bias, value_bias = ours.qkv.bias.chunk(3)
    theirs.load_state_dict(
        {
            "q_proj.weight": query,
            "q_proj.bias": query_bias,
            "k_proj.weight": key,
            "k_proj.bias": key_bias,
            "v_proj.weight": value,
            "v_proj.bias": value_bias,
            "o_proj.weight": ours.output.weight,
            "o_proj.bias": ours.output.bias,
            "relative_k_proj.weight": ours.position.weight,
            "bias_u": ours.u[:, 0],
            "bias_v": ours.v[:, 0],
        }
    )
    lengths = [11, 6, 1]
    x = torch.randn(3, 11, 16, dtype=torch.float64)
    positions = relative_positions(11, 16, x.device).double()
    padding = padding_mask(torch.tensor(lengths), 11)
    attend = ~padding[:, None, None, :].expand(-1, 1, 11, -1)  # the mask of transformers is True for visible frames
    out = ours(x, positions, padding)
    expected, _ = theirs(x, positions.expand(3, -1, -1), attend)
    for b, length in enumerate(lengths):
        torch.testing.assert_close(out[b, :length], expected[b, :length], rtol=0, atol=1e-9)


def test_sinusoids_follow_the_formula() -> None:
    positions = torch.tensor([0, 1, 2, 17, 400, -1, -400])
    expected = torch.tensor([encoding(position, DIM) for position in positions.tolist()])
    # The relative error of float32 is 2^-24, so an angle of 400 rad is accurate to 2e-5.
    torch.testing.assert_close(sinusoids(positions, DIM), expected, rtol=0, atol=5e-5)


def test_relative_positions_run_from_the_farthest_past_to_the_farthest_future() -> None:
    actual = relative_positions(5, DIM, torch.device("cpu"))
    torch.testing.assert_close(actual.double(), encodings(5, DIM), rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_single_frame_attends_to_itself() -> None:
    attention = random_attention()
    x = torch.randn(2, 1, DIM, dtype=torch.float64)
    value = attention.qkv(x)[..., 2 * DIM :]
    out = attention(x, encodings(1, DIM), torch.zeros(2, 1, dtype=torch.bool))
    torch.testing.assert_close(out, attention.output(value), rtol=0, atol=1e-12)


@torch.no_grad()
def test_the_content_of_padded_frames_changes_no_valid_frame() -> None:
    attention = random_attention()
    padding = padding_mask(torch.tensor([6, 2]), 6)
    x = torch.randn(2, 6, DIM, dtype=torch.float64)
    junk = torch.where(padding[:, :, None], 1e6 * torch.randn_like(x), x)
    positions = encodings(6, DIM)
    out, out_junk = attention(x, positions, padding), attention(junk, positions, padding)
    assert torch.equal(out[~padding], out_junk[~padding])


def test_an_utterance_of_padding_only_gives_finite_outputs_and_gradients() -> None:
    attention = random_attention().train()
    x = torch.randn(2, 3, DIM, dtype=torch.float64, requires_grad=True)
    out = attention(x, encodings(3, DIM), padding_mask(torch.tensor([3, 0]), 3))
    assert out.isfinite().all()
    out[0].sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())


@torch.no_grad()
def test_dropout_of_attention_weights_is_active_only_in_training() -> None:
    attention = random_attention(dropout=0.5)
    plain = random_attention()
    plain.load_state_dict(attention.state_dict())
    x, padding = torch.randn(1, 6, DIM, dtype=torch.float64), torch.zeros(1, 6, dtype=torch.bool)
    positions = encodings(6, DIM)
    assert torch.equal(attention(x, positions, padding), plain(x, positions, padding))
    attention.train()
    assert not torch.equal(attention(x, positions, padding), attention(x, positions, padding))
