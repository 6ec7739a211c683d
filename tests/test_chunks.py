"""Chunks contain every frame once, and equal one pass if the network's context is limited; segments end at pauses."""

import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from asr.base.text.normalize import basic
from asr.components.decode.greedy import Greedy
from asr.components.encoder.subsampling.strided_conv import StridedConv
from asr.components.tokenizer.char import Char
from asr.core.build import build_features
from asr.core.data.batch_plan import BatchBounds
from asr.core.data.manifest import Utterance
from asr.core.recognition.chunks import ChunkBounds, cut_at_pauses, cut_chunks, pause_in_blanks, stitch
from asr.core.recognition.confidence import UNCALIBRATED
from asr.core.recognition.inference import Inference
from asr.core.recognition.model import Model
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.recordings import whole_file
from asr.errors import InputError
from asr.interfaces import BLANK_ID, NO_TAPS, Encoded, Encoder, Features, NamedBlocks, Taps
from asr.lengths import Lengths, padding_mask
from tests.conftest import resolved
from tests.listener import LogSoftmax
from tests.refusals import refused

# ---- samples to chunks, chunks to frames


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, int]:
    """Draw the lengths of a chunk and of its context, in frames."""
    context = draw(st.integers(0, 5))
    return draw(st.integers(2 * context + 1, 2 * context + 12)), context


def in_blocks(draw: st.DrawFn, waveform: Tensor) -> list[Tensor]:
    """Split the waveform into parts of any length, some of them empty."""
    ends = draw(st.lists(st.integers(0, len(waveform)), max_size=8).map(sorted))
    return list(waveform.tensor_split(ends))


@given(data=st.data(), cut=cuts(), num_samples=st.integers(0, 300), hop=st.integers(1, 4))
def test_chunks_cover_every_sample_once_and_include_their_context(
    data: st.DataObject, cut: tuple[int, int], num_samples: int, hop: int
) -> None:
    chunk, context = (hop * frames for frames in cut)
    waveform = torch.arange(num_samples, dtype=torch.float32)
    chunks = list(cut_chunks(in_blocks(data.draw, waveform), chunk, context))
    ends = [piece.keep for piece in chunks[1:]] + [num_samples]
    answered = [
        piece.waveform[piece.keep - piece.start : end - piece.start] for piece, end in zip(chunks, ends, strict=True)
    ]
    assert torch.equal(torch.cat(answered), waveform)
    assert all(len(part) for part in answered) or num_samples == 0
    for piece, end in zip(chunks, ends, strict=True):
        assert torch.equal(piece.waveform, waveform[piece.start :][:chunk])
        assert piece.start % hop == piece.keep % hop == 0
        assert piece.start <= max(0, piece.keep - context)
        assert piece.start + len(piece.waveform) >= min(num_samples, end + context)
    assert len(chunks) == max(1, math.ceil((num_samples - 2 * context) / (chunk - 2 * context)))


def placed(pieces: Iterable[Tensor]) -> Iterator[tuple[int, Tensor]]:
    """Yield consecutive pieces, each with the number of its first frame.

    A piece without frames is dropped, unless no piece has frames.
    """
    position, empty = 0, None
    for piece in pieces:
        if len(piece):
            yield position, piece
        else:
            empty = piece
        position += len(piece)
    if position == 0 and empty is not None:
        yield 0, empty


def test_no_more_audio_is_read_than_the_next_chunk_needs() -> None:
    """Memory is bounded: at most one block is read beyond a chunk's end, and a chunk stores only its own samples."""
    read = 0

    def blocks() -> Iterator[Tensor]:
        nonlocal read
        for _ in range(100):
            read += 7
            yield torch.zeros(7)

    for chunk in cut_chunks(blocks(), 50, 10):
        assert read <= chunk.start + 50 + 7
        assert chunk.waveform.untyped_storage().nbytes() <= 4 * (50 + 7)


@given(cut=cuts(), num_frames=st.integers(0, 200))
def test_stitched_chunks_contain_each_frame_once_and_in_order(cut: tuple[int, int], num_frames: int) -> None:
    frames = torch.arange(num_frames, dtype=torch.float32)
    chunks = ((chunk.start, chunk.keep, chunk.waveform[:, None]) for chunk in cut_chunks([frames], *cut))
    pieces = list(stitch(chunks))
    assert torch.equal(torch.cat([piece for _, piece in pieces])[:, 0], frames)
    assert all(len(piece) == 0 or int(piece[0, 0]) == position for position, piece in pieces)


@pytest.mark.parametrize(("chunk", "context"), [(8, 4), (8, 5), (1, -1), (0, 0.1)])
def test_a_chunk_consisting_only_of_context_is_refused(chunk: float, context: float) -> None:
    with refused(InputError, "context_seconds ... chunk_seconds"):
        ChunkBounds(chunk, context).samples(16000, 640)


# ---- one pass and chunks give the same encoder_out

RATE, SHIFT, LENGTH, STRIDE = 1000, 10, 25, 4  # Hz; samples, samples; feature frames
HOP = STRIDE * SHIFT


class Integers:
    """Integer features: every second sample of a frame, ten in all, rounded to 8 bits."""

    dim = 10
    sample_rate = RATE
    hop = SHIFT

    def __call__(self, waveform: Tensor) -> Tensor:
        frames = self.num_frames(len(waveform))
        framed = waveform.unfold(0, LENGTH, SHIFT)[:frames] if frames else waveform.new_zeros(0, LENGTH)
        return (framed[:, : 2 * self.dim : 2] * 128).round()

    @staticmethod
    def num_frames(num_samples: Lengths) -> Lengths:
        frames = (num_samples - LENGTH) // SHIFT + 1
        return frames * (frames > 0)


class Limited(nn.Module):
    """A convolution with integer weights over `reach` feature frames on both sides of an encoder frame.

    Sums of integers below 2**24 are exact in float32 in any order. The output is these sums divided by 256, which is
    also exact; without the division all log_probs would be 0 or minus infinity.
    """

    stride = STRIDE
    blocks = nn.ModuleList()
    streaming = None

    def __init__(self, dim: int, vocab_size: int, reach: int) -> None:
        super().__init__()
        self.output_dim = vocab_size
        self.conv = nn.Conv1d(dim, vocab_size, 2 * reach + 1, STRIDE, reach)
        for weight in self.parameters():
            weight.data = torch.randint(-3, 4, weight.shape, generator=torch.Generator().manual_seed(1)).float()

    @staticmethod
    def output_lengths(feature_lengths: Lengths) -> Lengths:
        return -(-feature_lengths // STRIDE)

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        masked = features.masked_fill(padding_mask(feature_lengths, features.shape[1])[..., None], 0.0)
        out = self.conv(masked.transpose(1, 2)).transpose(1, 2) / 256
        return Encoded(out, self.output_lengths(feature_lengths), {})


TOKENIZER = Char()
TOKENIZER.fit([" abcd"])


def around(features: Features, encoder: Encoder) -> Recognizer:
    head = LogSoftmax()
    model = Model(basic, TOKENIZER, features, encoder, head).eval()
    return Recognizer(model, Greedy(head, TOKENIZER, basic), UNCALIBRATED)


def stub(reach: int) -> Recognizer:
    return around(Integers(), Limited(Integers.dim, TOKENIZER.vocab_size, reach))  # type: ignore[arg-type]


def one_pass(recognizer: Recognizer, waveform: Tensor) -> Tensor:
    features = recognizer.model.features(waveform)
    if len(features) == 0:
        return torch.zeros(0, recognizer.model.encoder.output_dim)
    with torch.inference_mode():
        encoded = recognizer.model(features[None], torch.tensor([len(features)]))
    return encoded.out[0, : encoded.lengths[0]]


def joined(recognizer: Recognizer, utterance: Utterance, options: Inference, waveform: Tensor | None = None) -> Tensor:
    """Join the segments, and check that each begins at the end of the previous segment."""
    waveforms = {} if waveform is None else {utterance.id: waveform}
    [(_, segments)] = recognizer.segments([utterance], options.unchecked, waveforms)  # type: ignore[misc]
    outs, frames = [], 0
    for start, encoder_out in segments:
        assert start == pytest.approx(frames * recognizer.model.frame_seconds)
        outs.append(encoder_out)
        frames += len(encoder_out)
    return torch.cat(outs)


@settings(max_examples=100, deadline=None)
@given(cut=cuts(), num_samples=st.integers(0, 3000), reach=st.integers(0, 20), at_once=st.integers(1, 200))
def test_encoder_out_stitched_from_chunks_is_bit_identical_to_one_pass(
    cut: tuple[int, int], num_samples: int, reach: int, at_once: int
) -> None:
    chunk, context = cut
    recognizer = stub(min(reach, STRIDE * context))
    waveform = torch.rand(num_samples, generator=torch.Generator().manual_seed(num_samples)) * 2 - 1
    options = Inference(BatchBounds(at_once * HOP / RATE, 5), ChunkBounds(chunk * HOP / RATE, context * HOP / RATE))
    stitched = joined(recognizer, Utterance("", num_samples / RATE, "", "0"), options, waveform)
    assert torch.equal(stitched, one_pass(recognizer, waveform))


@pytest.mark.parametrize("num_samples", [99, 1000, 41234])
def test_chunks_of_a_file_give_an_encoder_out_bit_identical_to_one_pass(num_samples: int, tmp_path: Path) -> None:
    recognizer = stub(reach=8)
    waveform = torch.randint(-(2**15), 2**15, (num_samples,)).float() / 2**15
    soundfile.write(tmp_path / "a.wav", waveform.numpy(), RATE, subtype="PCM_16")
    options = Inference(BatchBounds(2.0, 64), ChunkBounds(0.4, 0.08))
    expected = one_pass(recognizer, waveform)
    assert torch.equal(joined(recognizer, whole_file(tmp_path / "a.wav", "0"), options), expected)
    part = Utterance(str(tmp_path / "a.wav"), (num_samples - 50) / RATE, "", "0", offset=30 / RATE)
    assert torch.equal(joined(recognizer, part, options), one_pass(recognizer, waveform[30:-20]))


def test_a_context_that_is_too_short_changes_the_output() -> None:
    recognizer = stub(reach=9)
    waveform = torch.rand(1000)
    options = Inference(chunks=ChunkBounds(0.4, 0.08))  # 8 feature frames
    stitched = joined(recognizer, Utterance("", 1.0, "", "0"), options, waveform)
    assert not torch.equal(stitched, one_pass(recognizer, waveform))


class Front(nn.Module):
    """An encoder that consists only of the convolutional subsampling of the shipped encoders."""

    def __init__(self, dim: int, vocab_size: int) -> None:
        super().__init__()
        self.streaming = None
        self.subsampling = StridedConv(dim, vocab_size, num_channels=4, dropout=0.0)
        self.stride, self.output_lengths = self.subsampling.stride, self.subsampling.output_lengths
        self.output_dim = vocab_size

    def named_blocks(self) -> NamedBlocks:
        return []

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        return Encoded(*self.subsampling(features, feature_lengths), {})


@pytest.mark.parametrize("num_samples", [16000, 41_234, 3 * 16000 + 639])
def test_with_real_features_chunks_and_one_pass_differ_only_by_rounding(num_samples: int) -> None:
    """The tolerance is 1e-5: matrix products of another size (in filters or layers) are summed in another order."""
    features = build_features({"features": resolved("features/normalize=global_cmvn")["features"]})
    features.normalize.fit([8 + 4 * torch.tensor([[-1.0], [1.0]]).expand(2, features.dim)])
    recognizer = around(features, Front(features.dim, TOKENIZER.vocab_size))
    waveform = 0.1 * torch.randn(num_samples)
    options = Inference(BatchBounds(2.0, 64), ChunkBounds(0.48, 0.04))
    stitched = joined(recognizer, Utterance("", num_samples / 16000, "", "0"), options, waveform)
    torch.testing.assert_close(stitched, one_pass(recognizer, waveform), atol=1e-5, rtol=0)


# ---- from a stream of log_probs to segments


def stream(best: list[int], vocab_size: int = 4) -> Tensor:
    """Return log_probs (T', V) with these best tokens, of varying certainty."""
    drawn = torch.rand(len(best), vocab_size, generator=torch.Generator().manual_seed(len(best)))
    drawn[torch.arange(len(best)), best] += 2.0
    return drawn.log_softmax(dim=-1)


def collapse(best: list[int]) -> list[int]:
    return [token for token, _ in itertools.groupby(best) if token != BLANK_ID]


def pause(frames: Tensor) -> int:
    """Return the position of a pause in frames, which are negated log_probs."""
    return pause_in_blanks(-frames)


def longest_pause(best: list[int]) -> int:
    """Return the middle of the longest run of blanks in the second half; of equally long runs, the first is taken."""
    half, runs, run = len(best) // 2, [], []
    for frame in range(half, len(best) + 1):
        if frame < len(best) and best[frame] == BLANK_ID:
            run.append(frame)
        elif run:
            runs.append(run)
            run = []
    longest = max(runs, key=len)
    return (longest[0] + longest[-1] + 1) // 2


PATHS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=25).map(
    lambda runs: [token for token, frames in runs for _ in range(frames)]
)


@given(data=st.data(), best=PATHS, max_frames=st.integers(1, 20))
def test_segments_contain_all_frames_once_and_are_cut_in_pauses(
    data: st.DataObject, best: list[int], max_frames: int
) -> None:
    """Frames are negated log_probs, so that the test fails if the code confuses frames with log_probs."""
    log_probs = stream(best)
    segments = list(cut_at_pauses(placed(in_blocks(data.draw, -log_probs)), max_frames, pause))
    assert torch.equal(torch.cat([segment for _, segment in segments]), -log_probs)
    assert all(len(segment) <= max_frames for _, segment in segments)
    assert all(len(segment) for _, segment in segments) or not best
    starts = [start for start, _ in segments]
    assert starts == [0, *itertools.accumulate(len(segment) for _, segment in segments)][:-1]
    for start, end in itertools.pairwise(starts):
        searched = best[start : start + max_frames]
        if BLANK_ID in searched[len(searched) // 2 :]:
            assert end == start + max(1, longest_pause(searched))
        else:
            second_half = log_probs[start : start + max_frames, BLANK_ID][len(searched) // 2 :]
            assert end == start + max(1, len(searched) // 2 + int(second_half.argmax()))
    if all(best[start] == BLANK_ID or best[start] != best[start - 1] for start in starts[1:]):
        bests = [segment.argmin(dim=-1).tolist() for _, segment in segments if len(segment)]
        assert [token for part in bests for token in collapse(part)] == collapse(best)


def test_pauses_are_preferred_over_blanks_between_letters() -> None:
    first_half = [0, 0, 0, 0, 0, 0, 1, 1]
    best = [*first_half, 2, 0, 1, 0, 0, 0, 2, 0, *first_half]
    assert [start for start, _ in cut_at_pauses([(0, -stream(best))], 16, pause)] == [0, 12]


@pytest.mark.parametrize("max_frames", [1, 2, 7])
def test_non_finite_log_probs_do_not_cause_an_endless_loop(max_frames: int) -> None:
    segments = list(cut_at_pauses([(0, torch.full((20, 4), math.nan))], max_frames, pause))
    assert sum(len(segment) for _, segment in segments) == 20
    assert all(0 < len(segment) <= max_frames for _, segment in segments)


def test_a_segment_ends_before_audio_without_speech_and_the_next_one_begins_after_it() -> None:
    frames, nothing = -stream([1, 1, 0, 2]), torch.zeros(0, 4)
    pieces = [(0, nothing), (4, frames), (8, frames), (12, nothing), (16, nothing), (20, frames)]
    assert [(start, len(segment)) for start, segment in cut_at_pauses(pieces, 100, pause)] == [(4, 8), (20, 4)]
    [(start, segment)] = cut_at_pauses([(0, nothing), (4, nothing)], 100, pause)
    assert (start, segment.shape) == (0, (0, 4)), "a recording without speech is a segment without frames"


def test_only_the_current_segment_is_kept_in_memory() -> None:
    """Memory is bounded: at most one segment and one piece are read ahead; no segment is a view of a longer tensor."""
    taken = 0

    def pieces() -> Iterator[Tensor]:
        nonlocal taken
        for _ in range(100):
            taken += 10
            yield -stream([1, 1, 1, 0, 0, 0, 2, 2, 2, 2])

    for start, segment in cut_at_pauses(placed(pieces()), 35, pause):
        assert taken <= start + 35 + 10
        assert segment.untyped_storage().nbytes() <= 4 * 4 * 35
