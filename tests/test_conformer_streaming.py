"""The streaming Conformer: in any batch of streams, the output in chunks equals that of the whole utterance."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asr.base.settings.conf import names
from asr.components.encoder.block.attention.local_attention import LocalAttention
from asr.components.encoder.conformer_streaming import ConformerStreaming
from asr.components.encoder.subsampling.strided_conv import StridedConv
from asr.core.build import build_features, build_model, build_tokenizer, component
from asr.core.recognition.cached_stream import with_room
from asr.errors import InputError
from asr.interfaces import Encoded, State, StreamingEncoder, Tap
from tests.conftest import ENCODERS, NOT_CHUNK_BY_CHUNK, OTHER_PARTS, SMALLEST_ENCODERS, overridden, resolved
from tests.refusals import refused
from tests.test_attention import encoding

NUM_MEL_BINS = 20
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}
STREAMING = [name for name, file in ENCODERS.items() if file.name == "conformer_streaming"]
CASES = [
    pytest.param([f"encoder={name}"], marks=[pytest.mark.slow] * (name not in SMALLEST_ENCODERS)) for name in STREAMING
] + [part.overrides for part in OTHER_PARTS if part.encoder in STREAMING and part.group != "block/activation"]
SMALL = {"num_layers": 3, "subsampling": {"num_channels": 8}, "block": {"attention": {"context": 5}}}


def make(overrides: list[str], dtype: torch.dtype = torch.float64, **changes: Any) -> ConformerStreaming:
    """Make an encoder with few layers but the full width of its config, so that rounding errors are realistic.

    No parameter or running statistic has its initial value.
    """
    torch.manual_seed(0)
    config = overridden(overridden(resolved(*overrides)["encoder"], SMALL), changes)
    encoder = component("encoder", config)(NUM_MEL_BINS)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
        for name, buffer in encoder.named_buffers():
            buffer += torch.rand_like(buffer) * (1.0 if name.endswith("var") else 0.1)
    return encoder.to(dtype).eval()


def stream(
    encoder: StreamingEncoder, features: Tensor, chunk: int, taps: dict[int, Tap] | None = None
) -> tuple[Tensor, dict[int, Tensor], State]:
    """Encode an utterance's frames (T, F) chunk by chunk with right context."""
    state, outs, tapped = encoder.initial_state(1), [], []
    features = nn.functional.pad(features, (0, 0, encoder.stride - encoder.first_frames, 0), value=math.nan)
    size, right = chunk * encoder.stride, encoder.right_frames * encoder.stride
    for begin in range(0, len(features), size):
        seen = features[begin : begin + size + right]
        room = with_room(seen[None], size, right)
        encoded, state = encoder.step(room, torch.tensor([len(seen)]), state, taps or {})
        outs.append(encoded.out[0, : encoded.lengths[0]])
        tapped.append({index: block.out[0, : block.lengths[0]] for index, block in encoded.blocks.items()})
    return torch.cat(outs), {index: torch.cat([block[index] for block in tapped]) for index in tapped[0]}, state


def whole(encoder: StreamingEncoder, features: Tensor, taps: dict[int, Tap] | None = None) -> Encoded:
    return encoder(features[None], torch.tensor([len(features)]), taps or {})


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64], ids=["float32", "float64"]
)
@pytest.mark.parametrize("overrides", CASES, ids=" ".join)
@torch.no_grad()
def test_the_output_in_chunks_equals_that_of_the_whole_utterance(overrides: list[str], dtype: torch.dtype) -> None:
    encoder = make(overrides, dtype)
    for chunk, left, right, frames in (
        (1, 3, 1, 31),
        (4, 9, 0, 200),
        (4, 9, 6, 200),
        (7, 0, 2, 113),
        (8, 64, 8, 500),
        (50, 5, 0, 37),
        (5, 6, 60, 37),
        (3, 500, 3, 90),
    ):
        encoder.chunk_frames, encoder.left_frames, encoder.right_frames = chunk, left, right
        features = torch.randn(frames, NUM_MEL_BINS, dtype=dtype)
        expected = whole(encoder, features)
        out, _, _ = stream(encoder, features, chunk)
        assert len(out) == expected.lengths[0] == encoder.output_lengths(frames)
        assert (out - expected.out[0]).abs().max() <= TOLERANCES[dtype]


@torch.no_grad()
def test_chunks_equal_the_whole_utterance_if_taps_change_the_input_of_the_next_block() -> None:
    encoder = make(["encoder=conformer_streaming_xs"], chunk_frames=5, left_frames=7, right_frames=2)
    features = torch.randn(200, NUM_MEL_BINS, dtype=torch.float64)
    taps: dict[int, Tap] = {0: lambda x, padding: x.masked_fill(padding[:, :, None], 0.0).cos(), 2: lambda x, _: x}
    expected = whole(encoder, features, taps)
    out, blocks, _ = stream(encoder, features, 5, taps)
    torch.testing.assert_close(out, expected.out[0], rtol=0, atol=1e-10)
    assert blocks.keys() == expected.blocks.keys() == {0, 2}
    for index, block in blocks.items():
        torch.testing.assert_close(block, expected.blocks[index].out[0], rtol=0, atol=1e-10)


@torch.no_grad()
def test_streams_that_join_or_leave_a_batch_do_not_affect_the_others() -> None:
    encoder = make(["encoder=conformer_streaming_xs"], chunk_frames=4, left_frames=6, right_frames=2)
    utterances = [torch.randn(frames, NUM_MEL_BINS, dtype=torch.float64) for frames in (130, 48, 75, 16, 111)]
    starts = [0, 2, 0, 5, 3]  # the step at which each stream joins
    alone = [stream(encoder, features, 4)[0] for features in utterances]
    outs: list[list[Tensor]] = [[] for _ in utterances]
    there: list[int] = []
    state = encoder.initial_state(0)
    for turn in range(20):
        joining = [number for number, start in enumerate(starts) if start == turn]
        begun = encoder.initial_state(len(joining))
        state = {name: torch.cat([state[name], begun[name]]) for name in state}
        there += joining
        if not there:
            continue
        place = {number: (turn - starts[number]) * 16 for number in there}
        seen = [utterances[number][place[number] : place[number] + 16 + 8] for number in there]
        features = torch.full((len(seen), 24, NUM_MEL_BINS), math.nan, dtype=torch.float64)
        for row, frames in zip(features, seen, strict=True):
            row[: len(frames)] = frames
        encoded, state = encoder.step(features, torch.tensor([len(frames) for frames in seen]), state)
        for number, out, length in zip(there, encoded.out, encoded.lengths, strict=True):
            outs[number].append(out[:length])
        stay = [row for row, number in enumerate(there) if place[number] + 16 < len(utterances[number])]
        stay = stay[::-1]  # the order does not matter
        state, there = {name: rows[stay] for name, rows in state.items()}, [there[row] for row in stay]
    for out, expected in zip(outs, alone, strict=True):
        torch.testing.assert_close(torch.cat(out), expected, rtol=0, atol=1e-10)


@torch.no_grad()
def test_output_does_not_change_when_more_audio_arrives() -> None:
    encoder = make(["encoder=conformer_streaming_xs"], chunk_frames=4, left_frames=8, right_frames=3)
    features = torch.randn(160, NUM_MEL_BINS, dtype=torch.float64)
    other = torch.cat([features[:80], torch.randn(80, NUM_MEL_BINS, dtype=torch.float64)])
    first, second = (whole(encoder, frames).out[0] for frames in (features, other))
    # The fourth chunk depends on frames before 19, the fifth on frames before 23; the inputs differ from frame 20 on.
    torch.testing.assert_close(first[:16], second[:16], rtol=0, atol=1e-12)
    assert not torch.allclose(first[16:20], second[16:20])


@torch.no_grad()
def test_the_state_of_a_stream_does_not_grow() -> None:
    encoder = make(["encoder=conformer_streaming_xs"], chunk_frames=4, left_frames=6, right_frames=2)
    shapes = {name: rows.shape for name, rows in encoder.initial_state(1).items()}
    _, _, state = stream(encoder, torch.randn(640, NUM_MEL_BINS, dtype=torch.float64), 4)
    assert {name: rows.shape for name, rows in state.items()} == shapes
    assert all(rows.shape[0] == 1 for rows in state.values())


def attention_by_loops(attention: Any, x: Tensor, before: Tensor) -> Tensor:
    """Compute attention (arXiv:1901.02860, section 3.3) of frames (Q, D) that follow the frames `before` (M, D)."""
    dim = x.shape[1]
    heads, rows = attention.num_heads, []
    size = dim // heads
    seen = torch.cat([before, x])
    query, key, value = attention.qkv(seen).split(dim, dim=-1)
    for i in range(len(before), len(seen)):
        mixed = []
        for h in range(heads):
            head = slice(h * size, (h + 1) * size)
            scores = []
            for j in range(len(seen)):
                r = attention.position(torch.tensor(encoding(i - j, dim), dtype=torch.float64))[head]
                u, v, q, k = attention.u[h, 0], attention.v[h, 0], query[i, head], key[j, head]
                scores.append((q @ k + q @ r + u @ k + v @ r) / math.sqrt(size))
            weights = torch.stack(scores).softmax(dim=0)
            mixed.append(sum(weight * row[head] for weight, row in zip(weights, value, strict=True)))
        rows.append(torch.cat(mixed))
    return attention.output(torch.stack(rows))


def convolution_by_loops(convolution: Any, x: Tensor, before: Tensor) -> Tensor:
    """Compute the convolution module of arXiv:2005.08100, figure 2, for frames (Q, D).

    The kernel also covers the frames `before`, but no later frames.
    """
    gated = nn.functional.glu(convolution.pointwise1(torch.cat([before, x])))
    weight, bias = convolution.depthwise.weight[:, 0], convolution.depthwise.bias
    half = weight.shape[1] // 2
    rows = []
    for i in range(len(before), len(gated)):
        seen = [j for j in range(i - half, i + half + 1) if 0 <= j < len(gated)]
        rows.append(bias + sum(weight[:, j - i + half] * gated[j] for j in seen))
    normed = convolution.norm(torch.stack(rows)[None], torch.zeros(1, len(x), dtype=torch.bool))[0]
    return convolution.pointwise2(convolution.activation(normed))


@pytest.mark.parametrize(
    ("chunk", "left", "right", "frames"), [(3, 4, 2, 11), (1, 2, 0, 7), (5, 0, 7, 12), (20, 3, 4, 9), (2, 3, 1, 8)]
)
@torch.no_grad()
def test_the_output_for_a_whole_utterance_equals_the_papers_equations_term_by_term(
    chunk: int, left: int, right: int, frames: int
) -> None:
    sizes = {"chunk_frames": chunk, "left_frames": left, "right_frames": right}
    encoder = make(["encoder=conformer_streaming_xs"], dim=8, num_layers=2, block={"num_heads": 2}, **sizes)
    features = torch.randn(4 * frames, NUM_MEL_BINS, dtype=torch.float64)
    x = encoder.subsampling(features[None], torch.tensor([len(features)]))[0][0]
    rows = [x[begin : begin + chunk + right] for begin in range(0, frames, chunk)]

    def each(part: Any) -> None:
        """Add the output of `part` to each row, which is a chunk followed by its right context.

        `part` also gets all frames before the row: the chunks of the earlier rows, without their right context.
        """
        before = [torch.cat([row[:chunk] for row in [x[:0], *rows[:number]]]) for number in range(len(rows))]
        rows[:] = [row + part(row, all_before) for row, all_before in zip(rows, before, strict=True)]

    for block in encoder.blocks:
        norm_attention, norm_convolution = block.norm_attention, block.norm_convolution
        each(lambda x, _, of=block: 0.5 * of.feed_forward1(of.norm_feed_forward1(x)))
        each(
            lambda x, before, attention=block.attention, norm=norm_attention: attention_by_loops(
                attention, norm(x), norm(before[max(0, len(before) - left) :])
            )
        )
        each(
            lambda x, before, convolution=block.convolution, norm=norm_convolution: convolution_by_loops(
                convolution, norm(x), norm(before)
            )
        )
        each(lambda x, _, of=block: 0.5 * of.feed_forward2(of.norm_feed_forward2(x)))
        rows = [block.norm_output(row) for row in rows]
    expected = torch.cat([row[:chunk] for row in rows])
    # The tolerance is 1e-5, because the encoder computes its positions in float32.
    torch.testing.assert_close(whole(encoder, features).out[0], expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_with_a_single_chunk_the_encoder_equals_a_conformer_with_the_same_weights() -> None:
    streaming = make(["encoder=conformer_streaming_xs"], chunk_frames=None)
    config = overridden(resolved("encoder=conformer_xs")["encoder"], SMALL)
    conformer: Any = component("encoder", config)(NUM_MEL_BINS).double().eval()
    assert list(conformer.state_dict()) == list(streaming.state_dict())
    conformer.load_state_dict(streaming.state_dict())
    features = torch.randn(2, 130, NUM_MEL_BINS, dtype=torch.float64)
    lengths = torch.tensor([130, 77])
    ours, theirs = streaming(features, lengths), conformer(features, lengths)
    for number, length in enumerate(theirs.lengths):
        torch.testing.assert_close(ours.out[number, :length], theirs.out[number, :length], rtol=0, atol=1e-12)


@torch.no_grad()
def test_chunks_and_contexts_longer_than_the_utterance_need_no_extra_memory() -> None:
    encoder = make(["encoder=conformer_streaming_xs"], chunk_frames=100_000, left_frames=100_000, right_frames=1_000)
    features, seen = torch.randn(90, NUM_MEL_BINS, dtype=torch.float64), []
    encoder.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[2].shape[2]))
    first = whole(encoder, features)
    assert seen == [3 * len(first.out[0])]
    encoder.chunk_frames = None
    torch.testing.assert_close(first.out, whole(encoder, features).out, rtol=0, atol=1e-12)


def test_in_training_the_seed_determines_the_drawn_chunk_sizes_and_all_sizes_occur() -> None:
    encoder = make(["encoder=conformer_streaming_xs"], training_right_frames=[0, 8]).train()
    drawn = []
    for seed in range(60):
        torch.manual_seed(seed)
        drawn.append(encoder._drawn())
        torch.manual_seed(seed)
        assert encoder._drawn() == drawn[-1]
    choices = (encoder.training_chunk_frames, encoder.training_left_frames, encoder.training_right_frames)
    assert [set(sizes) for sizes in zip(*drawn, strict=True)] == [set(sizes) for sizes in choices]


def test_a_batch_in_training_uses_the_chunk_size_drawn_for_it() -> None:
    encoder = make(["encoder=conformer_streaming_xs", "encoder/block/norm=layer_norm"])
    features, lengths = torch.randn(2, 90, NUM_MEL_BINS, dtype=torch.float64), torch.tensor([90, 41])
    encoder.training_chunk_frames, encoder.training_left_frames, encoder.training_right_frames = [3], [4], [2]
    trained = encoder.train()(features, lengths).out
    encoder.chunk_frames, encoder.left_frames, encoder.right_frames = 3, 4, 2
    torch.testing.assert_close(trained, encoder.eval()(features, lengths).out, rtol=0, atol=0)


def test_cached_keys_beyond_the_reach_of_local_attention_are_masked() -> None:
    attention = LocalAttention(8, 2, 0.0, context=2, bias=True).double()
    x = torch.randn(1, 3, 8, dtype=torch.float64)
    far, near = torch.randn(1, 4, 16, dtype=torch.float64), torch.randn(1, 2, 16, dtype=torch.float64)
    positions = torch.randn(9 + 3, 8, dtype=torch.float64)[: 2 * 3 + 6 - 1]
    hidden = torch.zeros(1, 1, 9, dtype=torch.bool)
    befores = (torch.cat([earlier, near], dim=1) for earlier in (far, far.cos()))
    outs = [attention.extend(x, lambda _, cached=cached: cached, positions, hidden)[0] for cached in befores]
    torch.testing.assert_close(*outs, rtol=0, atol=0)


PARTS = [
    (group, part)
    for group in ("block/attention", "block/convolution", "block/norm", "subsampling")
    for part in names(f"encoder/{group}")
    if part in NOT_CHUNK_BY_CHUNK
]


@pytest.mark.parametrize(("group", "part"), PARTS)
def test_a_part_that_sees_future_frames_is_refused_in_one_line(group: str, part: str) -> None:
    config = resolved("encoder=conformer_streaming_xs", f"encoder/{group}={part}")["encoder"]
    with refused(InputError, f"encoder.{group.replace('/', '.')} ... streaming"):
        component("encoder", config)(NUM_MEL_BINS)


def test_a_subsampling_that_cannot_stream_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StridedConv, "streaming", None)
    config = resolved("encoder=conformer_streaming_xs", "encoder/subsampling=strided_conv")["encoder"]
    with refused(InputError, "encoder.subsampling ... StridedConv"):
        component("encoder", config)(NUM_MEL_BINS)


@pytest.mark.parametrize("normalize", ["utterance_cmvn", "loud_frame_cmvn", "per_utterance"])
def test_a_feature_normalisation_that_sees_future_frames_is_refused_and_an_alternative_is_named(normalize: str) -> None:
    config = resolved("encoder=conformer_streaming_xs", f"features/normalize={normalize}")
    tokenizer = build_tokenizer(config)
    tokenizer.fit(["abc"])
    must = "features.normalize must not need later frames for encoder=conformer_streaming; "
    with pytest.raises(InputError) as refusal:
        build_model(config, tokenizer, build_features(config))
    assert str(refusal.value) == f"{must}{normalize} does. Take features/normalize=global_cmvn."


def test_the_config_selects_a_feature_normalisation_without_future_frames() -> None:
    assert resolved("encoder=conformer_streaming_s")["features"]["normalize"]["name"] == "global_cmvn"


@pytest.mark.parametrize("subsampling", ["strided_conv", "depthwise_conv", "causal_conv"])
@torch.no_grad()
def test_subsampling_continues_across_chunks(subsampling: str) -> None:
    make_it = component("encoder/subsampling", {"name": subsampling, "num_channels": 6, "dropout": 0.0})
    for dim in (20, 7):
        module = make_it(dim, 8).double()
        unread = module.stride - module.first_frames
        for frames in (1, 2, 5, 8, 33, 100):
            features = torch.randn(2, frames, dim, dtype=torch.float64)
            lengths = torch.tensor([frames, (frames + 1) // 2])
            expected, expected_lengths = module(features, lengths)
            features = nn.functional.pad(features, (0, 0, unread, 0), value=math.nan)
            for size in (module.stride, 3 * module.stride):
                state, outs, counts = module.initial_state(2), [], []
                for start in range(0, unread + frames, size):
                    left = (unread + lengths - start).clamp(0, size)
                    out, out_lengths, state = module.step(features[:, start : start + size], left, state)
                    outs.append(out)
                    counts.append(out_lengths)
                assert torch.equal(sum(counts), expected_lengths)
                for row, length in enumerate(expected_lengths):
                    ours = torch.cat(outs, dim=1)[row, :length]
                    torch.testing.assert_close(ours, expected[row, :length], rtol=0, atol=1e-12)
