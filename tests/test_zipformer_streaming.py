"""The streaming Zipformer: in any batch of streams, the output in chunks equals that of the whole utterance."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asr.components.encoder.block.convolution.in_chunks import ChunkConvolution
from asr.components.encoder.block.zipformer_block import no_norm
from asr.components.encoder.subsampling.convnext import ConvNeXt
from asr.components.encoder.zipformer_parts import SwooshR
from asr.components.encoder.zipformer_streaming import ZipformerStreaming
from asr.core.build import component
from asr.errors import InputError
from asr.interfaces import Tap
from tests.conftest import overridden, resolved
from tests.refusals import refused
from tests.test_conformer_streaming import stream, whole
from tests.test_zipformer import close, random, stirred

NUM_MEL_BINS, TOLERANCE = 20, 1e-9
# Chunks are multiples of 4 encoder frames; some kernels have more frames than the smallest chunk, some fewer.
STACKS = {"dims": [12, 16, 24, 16], "layers": [1, 2, 1, 1], "strides": [1, 2, 8, 4], "heads": [2] * 4}
STACKS |= {"feed_forward_dims": [16] * 4, "kernel_sizes": [7, 31, 3, 5]}
SMALL = {"subsampling": {"channels": [2, 3, 4], "dropout": 0.0}, "block": {"dropout": 0.0}}


def make(**changes: Any) -> ZipformerStreaming:
    """Make a small encoder in float64, with weights that differ from their initial values."""
    config = overridden(resolved("encoder=zipformer_streaming_xs")["encoder"], STACKS | SMALL | changes)
    encoder: ZipformerStreaming = stirred(component("encoder", config)(NUM_MEL_BINS)).eval()
    return encoder


@pytest.mark.parametrize(
    ("chunk", "left", "frames"),
    [(4, 8, 200), (4, 0, 150), (8, 6, 333), (16, 64, 333), (12, 5, 61), (100, 8, 333), (8, 8, 9), (4, 100, 41)],
)
@torch.no_grad()
def test_the_output_in_chunks_equals_that_of_the_whole_utterance(chunk: int, left: int, frames: int) -> None:
    encoder = make(chunk_frames=chunk, left_frames=left)
    features = random(frames, NUM_MEL_BINS)
    expected = whole(encoder, features)
    out, _, state = stream(encoder, features, chunk)
    assert len(out) == expected.lengths[0] == encoder.output_lengths(frames)
    close(out, expected.out[0], TOLERANCE)
    begun = encoder.initial_state(1)
    assert {name: rows.shape for name, rows in state.items()} == {name: rows.shape for name, rows in begun.items()}


@torch.no_grad()
def test_chunks_have_a_frame_of_every_stack() -> None:
    encoder = make(strides=[2, 1, 4, 3], chunk_frames=6, training_chunk_frames=[12, None])
    assert encoder.chunk_multiple == 6
    features = random(150, NUM_MEL_BINS)
    close(stream(encoder, features, 6)[0], whole(encoder, features).out[0], TOLERANCE)


@torch.no_grad()
def test_another_front_end_needs_no_right_context() -> None:
    config = resolved("encoder=zipformer_streaming_xs")["encoder"]
    config = overridden(config, {**STACKS, **SMALL, "subsampling": {}, "chunk_frames": 4})
    config["subsampling"] = {"name": "strided_conv", "num_channels": 4, "dropout": 0.0}
    encoder = stirred(component("encoder", config)(NUM_MEL_BINS)).eval()
    assert (encoder.stride, encoder.right_frames, encoder.first_frames) == (8, 0, 8)
    features = random(150, NUM_MEL_BINS)
    close(stream(encoder, features, 4)[0], whole(encoder, features).out[0], TOLERANCE)


@torch.no_grad()
def test_streams_of_different_lengths_in_one_batch_have_the_output_that_each_has_alone() -> None:
    encoder = make(chunk_frames=4, left_frames=8)
    lengths, chunk, right = [150, 5, 61, 48, 16, 111], 16, 16
    utterances = [random(length, NUM_MEL_BINS, seed=length) for length in lengths]
    unread = encoder.stride - encoder.first_frames
    state, outs = encoder.initial_state(len(lengths)), [[] for _ in lengths]  # type: ignore[var-annotated]
    for begin in range(0, max(lengths) + unread, chunk):
        features = torch.full((len(lengths), chunk + right, NUM_MEL_BINS), math.nan, dtype=torch.float64)
        counts = []
        for row, utterance in enumerate(utterances):
            padded = nn.functional.pad(utterance, (0, 0, unread, 0), value=math.nan)
            seen = padded[begin : begin + chunk + right]
            features[row, : len(seen)] = seen
            counts.append(len(seen))
        encoded, state = encoder.step(features, torch.tensor(counts), state)
        for out, rows, length in zip(outs, encoded.out, encoded.lengths, strict=True):
            out.append(rows[:length])
    for out, utterance in zip(outs, utterances, strict=True):
        close(torch.cat(out), whole(encoder, utterance).out[0, : encoder.output_lengths(len(utterance))], TOLERANCE)


@torch.no_grad()
@pytest.mark.parametrize("chunk", [4, 16, None])
def test_padding_does_not_change_an_utterance(chunk: int | None) -> None:
    encoder = make(chunk_frames=chunk)
    features = random(90, NUM_MEL_BINS)
    batch = torch.full((2, 200, NUM_MEL_BINS), 100.0, dtype=torch.float64)
    batch[0, :90] = features
    encoded = encoder(batch, torch.tensor([90, 200]))
    close(encoded.out[0, : encoded.lengths[0]], whole(encoder, features).out[0], TOLERANCE)


@torch.no_grad()
def test_chunks_equal_the_whole_utterance_if_taps_change_the_input_of_the_next_block() -> None:
    encoder = make(chunk_frames=4, left_frames=8)
    features = random(200, NUM_MEL_BINS)
    taps: dict[int, Tap] = {1: lambda x, padding: x.masked_fill(padding[:, :, None], 0.0).cos(), 3: lambda x, _: x}
    expected = whole(encoder, features, taps)
    out, blocks, _ = stream(encoder, features, 4, taps)
    close(out, expected.out[0], TOLERANCE)
    for index, block in blocks.items():
        close(block, expected.blocks[index].out[0], TOLERANCE)


@torch.no_grad()
def test_a_chunk_depends_on_no_frame_after_its_right_context() -> None:
    encoder = make(chunk_frames=4, left_frames=8)
    features = random(200, NUM_MEL_BINS)
    first = whole(encoder, features).out[0]
    for place, expected in ((76, 12), (77, 16)):  # the fourth chunk depends on feature frames before 4 * 16 + 13
        other = features.clone()
        other[place] += 1.0
        moved = (whole(encoder, other).out[0] - first).abs().amax(dim=1) > 1e-12
        assert int(moved.nonzero()[0]) == expected


def plain_convolution(convolution: Any, gated: Tensor, chunk: int) -> Tensor:
    """Compute the sum of both depthwise convolutions for the frames (T, D) of an utterance, frame by frame."""
    causal, within, scales = convolution.causal, convolution.within, convolution.scales
    size, rows = within.weight.shape[2], []
    half, chunk = size // 2, min(chunk, len(gated))
    for frame in range(len(gated)):
        begin = frame // chunk * chunk
        out = causal.bias + sum(
            causal.weight[:, 0, half - back] * gated[frame - back] for back in range(min(half, frame) + 1)
        )
        near = [other for other in range(begin, min(begin + chunk, len(gated))) if abs(other - frame) <= half]
        centred = within.bias + sum(within.weight[:, 0, other - frame + half] * gated[other] for other in near)
        from_first, from_last, scale = frame - begin, begin + chunk - 1 - frame, 1.0
        if from_first < size:
            scale = scale + scales[0, :, from_first]
        if from_last < size:
            scale = scale + scales[1, :, size - 1 - from_last]
        rows.append(out + scale * centred)
    return torch.stack(rows)


@pytest.mark.parametrize(("size", "chunk", "frames"), [(3, 4, 10), (5, 4, 12), (9, 4, 11), (7, 20, 11), (1, 3, 5)])
@torch.no_grad()
def test_the_convolution_equals_sums_over_frames(size: int, chunk: int, frames: int) -> None:
    dim = 4
    convolution = stirred(ChunkConvolution(dim, no_norm, SwooshR, kernel_size=size, bias=True))
    x = random(1, frames, dim)
    zeros = x.new_zeros(1, size // 2, dim)
    ends = torch.tensor([min(chunk, frames)])
    padding = torch.zeros(1, frames, dtype=torch.bool)
    actual = convolution.in_chunks(x, lambda new: torch.cat([zeros, new], dim=1), chunk, ends, padding)
    gated = nn.functional.glu(convolution.pointwise1(x[0]))
    expected = convolution.pointwise2(convolution.activation(plain_convolution(convolution, gated, chunk)))
    close(actual[0], expected)


@torch.no_grad()
def test_the_front_end_continues_across_chunks() -> None:
    module = stirred(ConvNeXt(NUM_MEL_BINS, 8, channels=[2, 3, 4], dropout=0.0))
    unread, ahead = module.stride - module.first_frames, module.look_ahead
    for frames, size in ((9, 2), (40, 6), (41, 10), (100, 32)):
        features = random(1, frames, NUM_MEL_BINS)
        expected, _ = module(features, torch.tensor([frames]))
        state, outs = module.initial_state(1), []
        padded = nn.functional.pad(features, (0, 0, unread, size + ahead), value=math.nan)
        for begin in range(0, unread + frames, size):
            length = torch.tensor([min(size + ahead, unread + frames - begin)])
            out, lengths, state = module.step(padded[:, begin : begin + size + ahead], length, state, ahead)
            outs.append(out[0, : lengths[0]])
        close(torch.cat(outs), expected[0], TOLERANCE)


def test_in_training_the_seed_determines_the_drawn_chunk_size_and_left_context() -> None:
    encoder = make().train()
    features, lengths = random(2, 200, NUM_MEL_BINS), torch.tensor([200, 41])
    drawn = set()
    for seed in range(60):
        torch.manual_seed(seed)
        chunk, left = encoder._drawn()
        drawn.add((chunk, left))
        if seed >= 4:
            continue
        torch.manual_seed(seed)
        trained = encoder.train()(features, lengths).out
        encoder.chunk_frames, encoder.left_frames = chunk, left
        close(trained, encoder.eval()(features, lengths).out)
    assert drawn == {(chunk, left) for chunk in (8, 16, 32, None) for left in (32, 64, 128)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"chunk_frames": 6}, "encoder.chunk_frames ... 4 ... encoder.strides ... got 6"),
        ({"training_chunk_frames": [8, 7, None]}, "encoder.training_chunk_frames ... 4 ... got 7"),
    ],
    ids=str,
)
def test_a_chunk_without_a_frame_of_each_stack_is_refused(changes: dict[str, Any], expected: str) -> None:
    with refused(InputError, expected):
        make(**changes)


def test_another_right_context_is_refused() -> None:
    encoder = make()
    with refused(InputError, "16 ... zipformer_streaming; got 8"):
        encoder.step(random(1, 40, NUM_MEL_BINS), torch.tensor([40]), encoder.initial_state(1), ahead=8)


@pytest.mark.parametrize(("group", "part"), [("block", "zipformer_block"), ("subsampling", "unpadded_conv")])
def test_a_part_that_sees_future_frames_is_refused_and_an_alternative_is_named(group: str, part: str) -> None:
    config = resolved("encoder=zipformer_streaming_xs")["encoder"]
    other: Any = {"name": part, "num_channels": 4, "dropout": 0.0} if group == "subsampling" else {"name": part}
    config[group] = other if group == "subsampling" else config[group] | other
    with refused(InputError, f"encoder.{group} ... zipformer_streaming", cure=f"encoder/{group}="):
        component("encoder", config)(NUM_MEL_BINS)


def test_a_conformer_refuses_a_front_end_with_later_frames() -> None:
    config = resolved("encoder=conformer_streaming_xs")["encoder"]
    config["subsampling"] = {"name": "convnext", "channels": [2, 3, 4], "dropout": 0.0}
    with refused(InputError, "encoder.subsampling ... ConvNeXt"):
        component("encoder", config)(NUM_MEL_BINS)
