"""The parts of a Zipformer equal their equations in plain loops; stacks have their own strides and dimensions."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asr.base.kernels.positions import compact_positions
from asr.base.kernels.relative_attention import scores_by_key
from asr.base.kernels.swoosh import swoosh_plainly
from asr.components.encoder.block.zipformer_block import AttentionByWeights, AttentionWeights, NonlinearAttention
from asr.components.encoder.subsampling.convnext import ConvNeXt
from asr.components.encoder.zipformer_parts import BiasNorm, Bypass, Pooling, SwooshL, SwooshR, repeated
from asr.core.build import component
from asr.errors import InputError
from asr.interfaces import Encoded, Tap
from asr.lengths import padding_mask
from tests.conftest import STACKS, overridden, resolved
from tests.refusals import refused

DIM, FRAMES, NUM_MEL_BINS = 8, 11, 20
NAMES = ["zipformer_xs", "zipformer_s", "zipformer_m", "zipformer_l"]
# Parameters without a head, in millions, of icefall's networks with the arguments that its results name.
PARAMETERS = {"zipformer_s": 21.99, "zipformer_m": 63.99, "zipformer_l": 146.62}
PUBLISHED_STACKS = {"dims": [12, 16, 24, 16], "layers": [1, 1, 2, 1], "strides": [1, 2, 4, 2], "heads": [2] * 4}
PUBLISHED_STACKS |= {"feed_forward_dims": [16] * 4, "kernel_sizes": [3, 5, 3, 3]}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stirred(module: nn.Module) -> Any:
    """Return the module in float64, with weights that differ from their initial values."""
    module.double()
    with torch.no_grad():
        for number, weight in enumerate(module.parameters()):
            weight.add_(0.3 * random(*weight.shape, seed=number))
    return module


def close(actual: Tensor, expected: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(actual.detach(), expected.detach(), rtol=0, atol=atol)


def make(**changes: Any) -> Any:
    sizes = {**STACKS, **changes, "subsampling": {"channels": [2, 3, 4], "dropout": 0.0}, "block": {"dropout": 0.0}}
    config = overridden(resolved("encoder=zipformer_xs")["encoder"], sizes)
    return stirred(component("encoder", config)(NUM_MEL_BINS)).eval()


SWOOSHES = pytest.mark.parametrize(
    ("activation", "shift", "constant"), [(SwooshL(), 4.0, 0.035), (SwooshR(), 1.0, 0.313261687)]
)


@SWOOSHES
def test_an_activation_equals_its_formula(activation: nn.Module, shift: float, constant: float) -> None:
    values = [-60.0, -3.0, -0.1, 0.0, 0.7, 4.0, 19.0, 50.0]
    expected = [math.log1p(math.exp(value - shift)) - 0.08 * value - constant for value in values]
    close(activation(torch.tensor(values, dtype=torch.float64)), torch.tensor(expected, dtype=torch.float64), 1e-8)


@SWOOSHES
def test_the_fast_activation_equals_the_plain_one_and_has_its_gradient(
    activation: nn.Module, shift: float, constant: float
) -> None:
    x = (20 * random(50)).requires_grad_()
    expected = swoosh_plainly(x, shift, constant)
    close(activation(x), expected, 1e-8)  # torch's softplus is the identity above 20
    (gradient,) = torch.autograd.grad(activation(x).square().sum(), x)
    (of_plain,) = torch.autograd.grad(expected.square().sum(), x)
    close(gradient, of_plain, 1e-6)
    half = activation(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), expected, rtol=0.02, atol=0.02)


def test_bias_norm_divides_by_the_distance_from_the_bias() -> None:
    norm, x = stirred(BiasNorm(DIM)), random(3, DIM)
    for frame, out in zip(x, norm(x), strict=True):
        square = sum((float(frame[c]) - norm.bias[c].item()) ** 2 for c in range(DIM)) / DIM
        close(out, frame / square**0.5 * norm.log_scale.exp())


def test_bias_norm_of_a_frame_equal_to_the_bias_is_finite() -> None:
    norm = BiasNorm(DIM)
    assert norm(torch.stack([norm.bias, torch.zeros(DIM)])).isfinite().all()


def test_bypass_mixes_input_and_output_channel_by_channel() -> None:
    bypass, x, out = stirred(Bypass(DIM)), random(3, DIM), random(3, DIM, seed=1)
    for frame, branch, mixed in zip(x, out, bypass(x, out), strict=True):
        for channel, share in enumerate(bypass.share):
            close(mixed[channel], (1 - share) * frame[channel] + share * branch[channel])


@pytest.mark.parametrize("stride", [2, 4, 8])
def test_pooling_completes_the_last_group_with_the_last_frame_of_the_utterance(stride: int) -> None:
    pooling, x, lengths = stirred(Pooling(stride)), random(4, FRAMES, DIM), [FRAMES, 1, 8, 3]
    shares = [math.exp(weight) for weight in pooling.weight.tolist()]
    out, out_lengths = pooling(x, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        expected = []
        for begin in range(0, length, stride):
            frames = [x[row, min(begin + place, length - 1)] for place in range(stride)]
            expected.append(sum(share * frame for share, frame in zip(shares, frames, strict=True)) / sum(shares))
        assert int(out_lengths[row]) == len(expected)
        close(out[row, : len(expected)], torch.stack(expected))  # type: ignore[arg-type]


@pytest.mark.parametrize("frames", [8, 11, 12])
def test_frames_are_repeated_up_to_the_number_of_the_stacks_input(frames: int) -> None:
    x = random(2, 3, DIM)
    close(repeated(x, 4, frames), torch.stack([x[:, frame // 4] for frame in range(frames)], dim=1))


@pytest.mark.parametrize("dim", [6, 48])
def test_distances_are_compressed_to_angles(dim: int) -> None:
    encodings = compact_positions(FRAMES, dim, torch.device("cpu"))
    root = dim**0.5
    for row, distance in zip(encodings, range(FRAMES - 1, -FRAMES, -1), strict=True):
        compressed = root * math.log((abs(distance) + root) / root)
        angle = math.atan(math.copysign(compressed, -distance) * 2 * math.pi / dim)
        expected = [wave(k * angle) for k in range(1, dim // 2 + 1) for wave in (math.cos, math.sin)]
        close(row.double(), torch.tensor([*expected[:-1], 1.0], dtype=torch.float64), 1e-4 / FRAMES)


def plain_weights(weights: AttentionWeights, x: Tensor, positions: Tensor, num_heads: int) -> Tensor:
    """Compute the weights (H, T, T) of one utterance x (T, D), pair by pair."""
    frames, own, bias = len(x), weights.projection.weight, weights.projection.bias
    # For each frame: query, key and query for distances, (H, dim of a head) each.
    parts = [[part.unflatten(0, (num_heads, -1)) for part in (own @ row + bias).split(weights.sizes)] for row in x]
    scores = x.new_zeros(num_heads, frames, frames)
    for head in range(num_heads):
        for q in range(frames):
            for k in range(frames):
                distance = (weights.position.weight @ positions[frames - 1 - q + k]).unflatten(0, (num_heads, -1))
                near = parts[q][2][head] @ distance[head]
                scores[head, q, k] = parts[q][0][head] @ parts[k][1][head] + near
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


@torch.no_grad()
def test_attention_weights_and_the_modules_that_use_them_equal_sums_over_pairs_of_frames() -> None:
    heads, length = 2, 5
    weights = stirred(AttentionWeights(DIM, heads, 3, 2, 6))
    attention, nonlinear = stirred(AttentionByWeights(DIM, heads, 3)), stirred(NonlinearAttention(DIM))
    x = random(2, FRAMES, DIM)
    lengths = torch.tensor([FRAMES, length])
    given = weights(x, compact_positions(FRAMES, 6, x.device).double(), padding_mask(lengths, FRAMES))
    for row, count in enumerate(lengths.tolist()):
        utterance = x[row, :count]
        positions = compact_positions(count, 6, x.device).double()
        shares = plain_weights(weights, utterance, positions, heads)
        close(given[row, :, :count, :count], shares)
        assert not given[row, :, :count, count:].any()
        values = attention.value(utterance).unflatten(-1, (heads, -1))  # (T, H, 3)
        for q in range(count):
            mixed = [sum(shares[head, q, k] * values[k, head] for k in range(count)) for head in range(heads)]
            close(attention(x, given)[row, q], attention.output(torch.cat(mixed)))  # type: ignore[arg-type]
            gate, value, gate_of_output = nonlinear.projection(utterance).chunk(3, dim=-1)
            mixed_value = sum(shares[0, q, k] * value[k] * gate[k].tanh() for k in range(count))
            close(nonlinear(x, given[:, :1])[row, q], nonlinear.output(mixed_value * gate_of_output[q]))


def test_scores_by_distance_become_scores_by_key() -> None:
    scores = random(2, 3, 4, 7)
    shifted = scores_by_key(scores)
    for query in range(4):
        for key in range(4):
            close(shifted[:, :, query, key], scores[:, :, query, 3 - query + key])


@torch.no_grad()
def test_the_front_end_equals_convolutions_over_the_frames_of_an_utterance() -> None:
    front_end = stirred(ConvNeXt(NUM_MEL_BINS, DIM, channels=[2, 3, 4], dropout=0.0))
    features, lengths = random(5, 40, NUM_MEL_BINS), [40, 9, 10, 8, 31]
    out, out_lengths = front_end(features, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        count = max(0, (length - 7) // 2)
        assert front_end.output_lengths(length) == int(out_lengths[row]) == count
        if not count:
            continue
        x = features[None, None, row, :length]
        for conv in (front_end.conv1, front_end.conv2, front_end.conv3):
            x = SwooshR()(conv(x))
        layer = front_end.layer
        near = nn.functional.conv2d(x, layer.depthwise.weight, layer.depthwise.bias, padding=3, groups=4)
        inner = torch.einsum("oi,bitf->botf", layer.pointwise1.weight, near)
        inner = SwooshL()(inner + layer.pointwise1.bias[:, None, None])
        x = x + torch.einsum("oi,bitf->botf", layer.pointwise2.weight, inner)
        x = x + layer.pointwise2.bias[:, None, None]
        rows = [front_end.norm(front_end.linear(x[0, :, frame].flatten())) for frame in range(count)]
        close(out[row, :count], torch.stack(rows))


def test_too_few_features_for_the_front_end_are_refused() -> None:
    with refused(InputError, "7; got 6"):
        ConvNeXt(6, DIM, channels=[2, 3, 4], dropout=0.0)


@torch.no_grad()
def test_each_channel_of_the_output_comes_from_the_last_stack_that_has_it() -> None:
    encoder = make(**PUBLISHED_STACKS)
    features, lengths = random(1, 61, NUM_MEL_BINS), torch.tensor([61])
    outs: list[Tensor] = []
    for stack in encoder.stacks:
        stack.register_forward_hook(lambda module, inputs, result: outs.append(result[0]))
    encoded: Encoded = encoder(features, lengths)
    dims = PUBLISHED_STACKS["dims"]
    for channel in range(max(dims)):
        source = max(number for number, dim in enumerate(dims) if dim > channel)
        pooled, _ = encoder.pooling(outs[source][:, :, channel : channel + 1], torch.tensor([27]))
        close(encoded.out[:, :, channel], pooled[:, :, 0])


@torch.no_grad()
def test_a_tapped_block_has_the_frame_rate_and_the_dimension_of_its_stack() -> None:
    encoder, same = make(**PUBLISHED_STACKS), lambda x, padding_mask: x
    named = encoder.named_blocks()
    assert [(block.dim, block.stride) for _, block in named] == [(12, 2), (16, 4), (24, 8), (24, 8), (16, 4)]
    taps: dict[int, Tap] = dict.fromkeys(range(len(named)), same)
    encoded = encoder(random(2, 61, NUM_MEL_BINS), torch.tensor([61, 20]), taps)
    assert encoded.lengths.tolist() == [14, 3]
    for index, (_, block) in enumerate(named):
        frames = [math.ceil(count / (block.stride // 2)) for count in (27, 6)]
        assert encoded.blocks[index].lengths.tolist() == frames
        assert encoded.blocks[index].out.shape == (2, frames[0], block.dim)


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_published_sizes_have_the_parameters_of_icefalls_networks(name: str) -> None:
    with torch.device("meta"):
        encoder = component("encoder", resolved(f"encoder={name}", "head=ctc")["encoder"])(80)
    assert round(sum(weight.numel() for weight in encoder.parameters()) / 1e6, 2) == PARAMETERS[name]


@pytest.mark.parametrize("head", ["ctc_intermediate", "ctc_self_conditioned"])
def test_heads_can_tap_the_smallest_size(head: str) -> None:
    config = resolved("encoder=zipformer_xs", f"head={head}")
    encoder = component("encoder", config["encoder"])(80)
    dims = {name: block.dim for name, block in encoder.named_blocks()}
    component("head", config["head"])(encoder.output_dim, dims, 30)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"layers": [1, 2]}, "encoder.layers ... 3 ... encoder.dims; got 2"),
        ({"dims": [16, 18, 16]}, "encoder.dims ... 4 ... got 18"),
        ({"strides": [1, 0, 2]}, "encoder.strides ... got [1, 0, 2]"),
        ({"kernel_sizes": [3, 4, 3]}, "encoder.kernel_sizes ... got [3, 4, 3]"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, Any], expected: str) -> None:
    with refused(InputError, expected):
        make(**changes)
