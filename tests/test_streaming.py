"""Streams: for pieces of any size, features, words and times equal those of one pass over the whole recording."""

import functools
import math
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from asr import Stream
from asr.base.settings.plugins import ZOO, homes
from asr.base.text.normalize import as_written
from asr.components.tokenizer.char import Char
from asr.core.build import build_features, build_recognizer, build_tokenizer
from asr.core.recognition import timing
from asr.core.recognition.alignment import token_spans
from asr.core.recognition.cached_stream import CachedStream, advance, decode_chunks
from asr.core.recognition.captions import Captions, StreamSettings
from asr.core.recognition.chunks import ChunkBounds
from asr.core.recognition.feature_stream import Remainder, stream_features
from asr.core.recognition.inference import Inference
from asr.core.recognition.latency import latencies
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.streaming import LookBackStream, look_back_together
from asr.core.recognition.timing import with_times
from asr.core.recognition.transcript import Transcript, Word
from asr.errors import InputError
from asr.interfaces import BLANK_ID, Encoded, Hypothesis, Span
from tests.conftest import ROOT, overridden, resolved
from tests.listener import listener
from tests.refusals import check_refusal, refused
from tests.tones import sentences, speak

RATE = 16000


def pieces(waveform: Tensor, seed: int, most: int = 5000) -> list[Tensor]:
    """Cut samples at random; a piece may have no sample, or only one."""
    cuts, generator = [], random.Random(seed)
    while sum(cuts) < len(waveform):
        cuts.append(min(generator.choice([0, 1, generator.randint(1, most)]), len(waveform) - sum(cuts)))
    return list(waveform.split(cuts))


FEATURES = [
    ["features=fbank"],
    ["features=fbank", "features.frame_shift_seconds=0.03"],
    ["features=slaney_fbank"],
    ["features=slaney_fbank", "features.pad_mode=reflect"],
    *([["features=htk_fbank"]] if ZOO in homes() else []),
    ["features=slaney_fbank", "features.frame_length_seconds=0.04", "features.frame_shift_seconds=0.005"],
    ["features=slaney_fbank", "features.frame_shift_seconds=0.03", "features.pad_mode=reflect"],
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("overrides", FEATURES, ids=" ".join)
def test_features_of_pieces_equal_those_of_the_whole_waveform(overrides: list[str], dtype: torch.dtype) -> None:
    features = build_features(resolved(*overrides, "features/normalize=global_cmvn"))
    features.normalize.mean, features.normalize.std = torch.randn(80), torch.rand(80) + 0.5
    for seed, num_samples in enumerate((0, 1, 159, 160, 399, 400, 401, 700, 9000, 20011)):
        waveform = 0.3 * torch.randn(num_samples, dtype=dtype)
        remainder, frames = Remainder(), []
        for piece in pieces(waveform, seed):
            given, remainder = stream_features(features, piece, remainder)
            frames.append(given)
            assert len(remainder.samples) < 2000, "the stored samples do not grow"
        given, _ = stream_features(features, waveform[:0], remainder, at_end=True)
        expected = features(waveform)
        ours = torch.cat([*frames, given])
        assert ours.shape == expected.shape
        # float64 detects a wrong frame; in float32 the logarithm of a faint bin has fewer correct digits.
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10 if dtype == torch.float64 else 1e-4)


@functools.cache
def shared(name: str) -> Recognizer:
    """Return a recogniser that no test changes."""
    if name.startswith("causal "):
        return causal(name.removeprefix("causal "))
    if name in TRANSDUCERS:
        return transducer(name)
    return streaming_recognizer(BEAM if name == "beam" else None)


TRANSDUCERS = {
    "transducer": ("head=transducer",),
    "transducer alone": ("head=transducer", "head.ctc_weight=0"),
    "tdt": ("head=tdt", "head.ctc_weight=0.3"),
    "tdt alone": ("head=tdt", "head.ctc_weight=0"),
}


LOOK_AHEADS = {"chunk_frames": 6, "right_frames": 0, "training_chunk_frames": [6, 1, 15], "training_right_frames": [0]}


def causal(name: str) -> Recognizer:
    """Make a recogniser whose chunk is its look-ahead, with a list of latencies."""
    if name in TRANSDUCERS:
        return transducer(name, encoder=LOOK_AHEADS)
    return streaming_recognizer(BEAM if name == "beam" else None, encoder=LOOK_AHEADS)


def transducer(
    name: str = "transducer", ends: Sequence[str] = (), encoder: Mapping[str, object] | None = None
) -> Recognizer:
    """Make a transducer that emits one token in some frames, and several tokens in a few.

    `ends` are hidden pieces, which are emitted nearly as often as spaces.
    """
    overrides = TRANSDUCERS[name]
    decode = resolved(*overrides)["decode"]
    recognizer = streaming_recognizer(decode, head=(*overrides, "head/predictor=lstm"), ends=ends, encoder=encoder)
    joiner, predictor = recognizer.model.head.joiner, recognizer.model.head.predictor
    frames = recognizer.model.features(speech(4.0, 99))
    with torch.no_grad():
        # Except for "transducer", tokens have little influence on the joiner, so that no token is repeated endlessly.
        joiner.of_tokens.weight.mul_(1.0 if name == "transducer" else 0.2)
        encoded = recognizer.model(frames[None], torch.tensor([len(frames)]))
        before = joiner.of_tokens(predictor(torch.randint(1, 9, (1, encoded.out.shape[1] - 1))))
        logits = joiner(joiner.of_frames(encoded.out), before)[0]
        scale = 4.0 / logits.std(dim=0)
        joiner.output.bias.sub_(logits.mean(dim=0)).mul_(scale)
        joiner.output.weight.mul_(scale[:, None])
        joiner.output.bias[BLANK_ID] += 10.0 if name == "transducer" else 5.0
        for piece in (" ", *ends):
            joiner.output.bias[list(recognizer.model.tokenizer.names).index(piece)] += 5.0 if piece == " " else 4.0
    return recognizer


def streaming_recognizer(
    decode: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float64,
    head: Sequence[str] = ("head=ctc_self_conditioned", "head.num_intermediate=1"),
    ends: Sequence[str] = (),
    encoder: Mapping[str, object] | None = None,
) -> Recognizer:
    """Make a recogniser with random weights that emits many tokens: the best token changes with every frame."""
    torch.manual_seed(3)
    config = resolved("encoder=conformer_streaming_xs", *head)
    small = {"num_layers": 2, "dim": 32, "subsampling": {"num_channels": 4}, "block": {"num_heads": 2}}
    sizes = {"chunk_frames": 6, "left_frames": 10, "right_frames": 3}
    config["encoder"] = overridden(config["encoder"], small) | sizes | dict(encoder or {})
    config["decode"] = decode or config["decode"]
    tokenizer = build_tokenizer(config)
    tokenizer.fit(["abcd efgh"])
    tokenizer.extend(ends)
    features = build_features(config)
    features.normalize.mean, features.normalize.std = torch.full((80,), 5.0), torch.full((80,), 3.0)
    recognizer = build_recognizer(config, tokenizer, features)
    with torch.no_grad():
        for parameter in recognizer.model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    recognizer.model.to(dtype).eval()
    if recognizer.model.head.frame_head is None:
        return recognizer
    linear = recognizer.model.head.frame_head.linear
    # Each step changes the input of the next block. After three steps no token is the most likely one everywhere.
    for _ in range(3):
        frames = recognizer.model.features(speech(4.0, 99, dtype))
        with torch.no_grad():
            logits = linear(recognizer.model(frames[None], torch.tensor([len(frames)])).out[0])
            scale = 4.0 / logits.std(dim=0)
            linear.bias.sub_(logits.mean(dim=0)).mul_(scale)
            linear.weight.mul_(scale[:, None])
    return recognizer


def speech(seconds: float, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return noise whose colour and loudness change."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(round(seconds * RATE), generator=generator)
    tones = torch.randn(len(noise) // 1600 + 1, generator=generator).repeat_interleave(1600)[: len(noise)]
    wave = (torch.arange(len(noise)) * (0.05 + 0.3 * tones.abs())).sin()
    return (0.1 * noise + 0.3 * wave).clamp(-1, 1).to(dtype)


def whole(recognizer: Recognizer, waveform: Tensor, chunk_frames: int | None = None) -> str:
    """Return the text recognised in one pass over the waveform, with chunks of this size or the model's."""
    features, encoder = recognizer.model.features(waveform), recognizer.model.encoder
    if len(features) == 0:
        return ""
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(encoder, "chunk_frames", chunk_frames or encoder.chunk_frames)
        encoded = recognizer.model(features[None], torch.tensor([len(features)]))
    return recognizer.text(recognizer.hypotheses(encoded)[0][0])


def words_of_one_pass(recognizer: Recognizer, waveform: Tensor) -> list[Word]:
    """Return the words, with times, that are recognised in one pass over the waveform."""
    features = recognizer.model.features(waveform)
    with torch.inference_mode():
        encoded = recognizer.model(features[None], torch.tensor([len(features)]))
        [[best, *_]] = recognizer.hypotheses(encoded)
        timed = with_times(best, lambda: recognizer.frame_head.log_probs(encoded.out)[0])
    return list(recognizer.words(timed, 0.0, encoded.out.shape[1] * recognizer.model.frame_seconds))


def streamed(stream: Any, waveform: Tensor, seed: int) -> list[Captions]:
    return [*(stream.feed(piece) for piece in pieces(waveform, seed)), stream.finish()]


def final_text(captions: list[Captions]) -> str:
    return " ".join(word.text for each in captions for word in each.final)


BEAM = {**resolved("decode=beam")["decode"], "beam_size": 4}
DECODERS = pytest.mark.parametrize(
    "decode",
    [
        *("greedy", "beam"),
        *(pytest.param(name, marks=[pytest.mark.slow] * (name == "transducer alone")) for name in TRANSDUCERS),
    ],
)


@DECODERS
def test_the_text_of_a_stream_equals_that_of_one_pass(decode: str) -> None:
    recognizer = shared(decode)
    for seed, seconds in enumerate((0.0, 0.02, 0.3, 2.17, 6.0)):
        waveform = speech(seconds, seed)
        captions = streamed(Stream(recognizer, endpoint_seconds=None, settled_seconds=None), waveform, seed)
        assert final_text(captions) == whole(recognizer, waveform)
    assert len(final_text(captions).split()) > 5


@pytest.mark.parametrize(
    "decode",
    [
        "greedy",
        "beam",
        "tdt",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("transducer alone", "tdt alone")),
    ],
)
def test_words_and_times_of_a_stream_are_those_of_one_pass_for_any_pieces(decode: str) -> None:
    """Not with "transducer": its times are those of a random CTC head, for which its tokens are all but impossible."""
    recognizer = shared(decode)
    frame_seconds = recognizer.model.frame_seconds
    for seed in range(4):
        waveform = speech(4.0 + seed, seed)
        expected = words_of_one_pass(recognizer, waveform)
        captions = streamed(Stream(recognizer, endpoint_seconds=None, settled_seconds=None), waveform, seed)
        words = [word for each in captions for word in each.final]
        assert [word.text for word in words] == [word.text for word in expected]
        for word, other in zip(words, expected, strict=True):
            assert (word.start, word.end) == pytest.approx((other.start, other.end), abs=1.01 * frame_seconds)


@DECODERS
@pytest.mark.parametrize("latency", [None, 0.04, 0.24, 0.6])
def test_a_final_word_is_never_revoked_and_partial_words_follow_it(decode: str, latency: float | None) -> None:
    """For any pieces and each latency, the final words are always the first words of one pass."""
    recognizer = shared(decode if latency is None else f"causal {decode}")
    assert latency is None or latency in map(pytest.approx, latencies(recognizer.model))
    chunk_frames = None if latency is None else round(latency / recognizer.model.frame_seconds)
    num_partial = 0
    for seed in range(3):
        waveform = speech(6.0, seed + 4)
        captions = streamed(Stream(recognizer, latency=latency, endpoint_seconds=None), waveform, seed)
        text = whole(recognizer, waveform, chunk_frames).split()
        so_far: list[str] = []
        for each in captions:
            so_far += [word.text for word in each.final]
            assert so_far == text[: len(so_far)]
            num_partial += bool(each.partial)
        assert so_far == text
        times = [(word.start, word.end) for each in captions for word in each.final]
        assert times == sorted(times)
        assert all(0 <= start < end <= 6.1 for start, end in times)
    assert num_partial


def test_a_provisional_word_does_not_end_with_a_part_of_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pieces that are bytes, a chunk may end between two bytes of a character."""
    model = shared("greedy").model
    pieces = [piece if number % 3 else "\udcc3" * bool(piece) for number, piece in enumerate(model.tokenizer.pieces)]
    monkeypatch.setattr(Char, "pieces", pieces)
    monkeypatch.setattr(model, "normalize", as_written)
    for seed in range(3):
        captions = streamed(Stream(shared("greedy"), endpoint_seconds=None), speech(6.0, seed), seed)
        partial = [each.partial[-1].text for each in captions if each.partial]
        assert partial
        assert not [text for text in partial if text.endswith("\N{REPLACEMENT CHARACTER}")]
    assert "\N{REPLACEMENT CHARACTER}" in final_text(captions)


@pytest.mark.parametrize("decode", ["greedy", *TRANSDUCERS])
def test_settled_tokens_are_not_repeated_and_later_ones_are_not_lost(decode: str) -> None:
    recognizer = shared(decode)
    frames = recognizer.model.features(speech(6.0, 4))
    encoded = recognizer.model(frames[None], torch.tensor([len(frames)]))
    search: Any = recognizer.decode
    parts, on, stopped = encoded.out.split(10, dim=1), search.initial_state(), search.initial_state()
    settled_tokens = []
    for part in parts:
        [[whole_text]], [on] = search.step(Encoded(part, torch.tensor([part.shape[1]]), {}), [on])
        _, [stopped] = search.step(Encoded(part, torch.tensor([part.shape[1]]), {}), [stopped])
        hypothesis, stopped = search.settle(stopped)
        settled_tokens += hypothesis.tokens
    assert settled_tokens == whole_text.tokens
    assert len(settled_tokens) > 5


def test_old_words_are_final_even_if_the_beam_has_other_hypotheses() -> None:
    recognizer = streaming_recognizer({**BEAM, "beam_size": 64, "beam_threshold": 100.0})
    waveform = speech(8.0, 5)

    def longest_wait(settled: float | None) -> tuple[float, list[Captions]]:
        """Return the longest time from the end of a word to its output, for words that another word follows."""
        stream, captions, waits = Stream(recognizer, endpoint_seconds=None, settled_seconds=settled), [], [0.0]
        for number, piece in enumerate(waveform.split(RATE // 10)):
            captions.append(stream.feed(piece))
            waits += [0.1 * (number + 1) - word.end for word in captions[-1].partial[:-1]]
        return max(waits), [*captions, stream.finish()]

    most, captions = longest_wait(0.5)
    assert 0.5 < most < 0.5 + 0.04 * (6 + 3) + 0.1  # a chunk, its right context, and a piece
    assert longest_wait(None)[0] > 2 * most
    starts = [word.start for each in captions for word in each.final]
    assert len(starts) > 10
    assert starts == sorted(starts), "no word is emitted twice"


def test_a_stream_with_other_chunk_sizes_equals_one_pass_with_these_sizes() -> None:
    recognizer, waveform = streaming_recognizer(), speech(2.0, 7)
    encoder: Any = recognizer.model.encoder
    for chunk, left, right in ((1, 3, 0), (4, 0, 9), (20, 40, 2)):
        seconds = {"chunk_seconds": 0.04 * chunk, "left_seconds": 0.04 * left, "right_seconds": 0.04 * right}
        text = final_text(streamed(Stream(recognizer, **seconds, endpoint_seconds=None), waveform, chunk))
        encoder.chunk_frames, encoder.left_frames, encoder.right_frames = chunk, left, right
        assert text == whole(recognizer, waveform)


@DECODERS
def test_each_stream_of_a_changing_batch_gives_the_same_words_as_alone(decode: str) -> None:
    recognizer = shared(decode)

    def make(right: float) -> CachedStream:
        settings = StreamSettings(right_seconds=right, endpoint_seconds=None, settled_seconds=None)
        return CachedStream(recognizer, settings)

    waveforms = [speech(seconds, seed) for seed, seconds in enumerate((3.0, 1.1, 2.0, 0.4))]
    look_aheads = (0.12, 0.0, 0.24, 0.12)
    alone = [
        final_text(streamed(make(right), waveform, 0)) for right, waveform in zip(look_aheads, waveforms, strict=True)
    ]
    parts = [pieces(waveform, seed, 9000) for seed, waveform in enumerate(waveforms)]
    streams, outputs = [make(right) for right in look_aheads], [[] for _ in parts]
    starts = [0, 3, 1, 6]
    for turn in range(200):
        there = [n for n, start in enumerate(starts) if 0 <= turn - start < len(parts[n])]
        for n in there:
            streams[n].hear(parts[n][turn - starts[n]], at_end=turn - starts[n] == len(parts[n]) - 1)
        for n, captions in zip(there, advance([streams[n] for n in there]), strict=True):
            outputs[n].append(captions)
    assert [final_text(each) for each in outputs] == alone


def test_the_state_of_a_stream_does_not_grow() -> None:
    recognizer = streaming_recognizer({**BEAM, "beam_size": 2})
    stream = CachedStream(recognizer, StreamSettings(endpoint_seconds=1.0, settled_seconds=None))
    sizes = []
    for seed in range(10):
        stream.feed(speech(1.0, seed))
        tensors = [*stream.state.values(), *stream.clock.log_probs, stream._features, stream._remainder.samples]
        sizes.append(sum(tensor.untyped_storage().nbytes() for tensor in tensors))
        assert max(len(prefix.tokens()) for prefix in stream.decoded.beams) < 200
    assert max(sizes[5:]) < 1.5 * max(sizes[:5])


@pytest.mark.parametrize(
    "decode",
    [
        "tdt",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("greedy", "beam", "transducer", "transducer alone", "tdt alone")
        ),
    ],
)
def test_the_cost_per_chunk_of_an_endless_word_is_bounded(decode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk aligns at most ten seconds of the word; the text equals that of one pass."""
    is_transducer = decode in TRANSDUCERS
    recognizer = transducer(decode) if is_transducer else streaming_recognizer(BEAM if decode == "beam" else None)
    space = recognizer.model.tokenizer.pieces.index(" ")
    with torch.no_grad():
        if recognizer.model.head.frame_head is not None:
            recognizer.model.head.frame_head.linear.bias[space] -= 1000.0
        if is_transducer:
            recognizer.model.head.joiner.output.bias[[space, BLANK_ID]] -= torch.tensor([1000.0, 6.5])
    aligned: list[int] = []

    def counted(log_probs: Tensor, tokens: list[int]) -> list[Span]:
        aligned.append(len(log_probs))
        return token_spans(log_probs, tokens)

    monkeypatch.setattr(timing, "token_spans", counted)
    waveform = speech(60.0, 3)
    stream = Stream(recognizer, endpoint_seconds=None)
    captions = streamed(stream, waveform, 3)
    assert max(aligned, default=0) * 0.04 < 10.0 + 1.0
    assert final_text(captions) == whole(recognizer, waveform)
    [word] = [word for each in captions for word in each.final]
    assert len(word.text) > 100
    assert word.start < 0.5
    assert (59.0 if not is_transducer else 15.0) < word.end <= 60.1  # the transducer emits nothing later
    partials = [each.partial for each in captions if each.partial]
    assert all(later[0].text.startswith(earlier[0].text[:-50]) for earlier, later in pairwise(partials))
    assert all(partial[0].start == word.start for partial in partials[len(partials) // 2 :])


def test_silence_ends_a_segment_of_speech() -> None:
    recognizer = streaming_recognizer(dtype=torch.float32)
    stream = CachedStream(recognizer, StreamSettings(endpoint_seconds=0.2, settled_seconds=None))
    pieces_of = recognizer.model.tokenizer.pieces
    ids = {piece: number for number, piece in enumerate(pieces_of)}
    log_probs = {token: torch.full((1, len(pieces_of)), -20.0) for token in range(len(pieces_of))}
    for token, row in log_probs.items():
        row[0, token] = 0.0
    spoken = [ids["a"], ids["b"], 0, ids[" "], ids["c"], ids["d"]]
    recognizer.frame_head.log_probs = lambda encoder_out: encoder_out  # type: ignore[method-assign]
    stream.decode._log_probs = lambda encoder_out: encoder_out
    captions = decode_chunks([stream], [torch.cat([log_probs[token] for token in spoken])])[0]
    assert [word.text for word in captions.final] == ["ab"]
    assert [word.text for word in captions.partial] == ["cd"]
    assert not captions.is_end
    captions = decode_chunks([stream], [log_probs[0].repeat(4, 1)])[0]
    assert not captions.is_end
    captions = decode_chunks([stream], [log_probs[0].repeat(2, 1)])[0]
    assert captions.is_end
    [word] = captions.final
    assert (word.text, round(word.start, 2), round(word.end, 2)) == ("cd", 0.16, 0.24)
    captions = decode_chunks([stream], [log_probs[0].repeat(9, 1)])[0]
    assert captions == Captions([], [])
    captions = decode_chunks([stream], [torch.cat([log_probs[ids["b"]], log_probs[0]])])[0]
    assert [(word.text, round(word.start, 2)) for word in captions.partial] == [("b", 0.84)]


def test_a_word_emitted_one_chunk_late_has_the_time_at_which_it_was_spoken() -> None:
    recognizer = streaming_recognizer(dtype=torch.float32)
    stream = CachedStream(recognizer, StreamSettings(endpoint_seconds=None, settled_seconds=None))
    pieces_of = recognizer.model.tokenizer.pieces
    a, blank = (torch.full((1, len(pieces_of)), -20.0) for _ in range(2))
    a[0, pieces_of.index("a")], blank[0, BLANK_ID] = 0.0, 0.0
    recognizer.frame_head.log_probs = lambda encoder_out: encoder_out  # type: ignore[method-assign]
    written = iter([[], [], [pieces_of.index("a")]])
    stream.decode.step = lambda *_: ([[Hypothesis(next(written), 0.0)]], [None])  # type: ignore[method-assign]
    for chunk in ([blank] * 3, [blank, a, blank], [blank] * 3):
        captions = decode_chunks([stream], [torch.cat(chunk)])[0]
    [word] = captions.partial
    assert (word.text, round(word.start, 2), round(word.end, 2)) == ("a", 0.16, 0.20)
    assert sum(map(len, stream.clock.log_probs)) == 6, "no more audio is stored"


def test_with_a_non_streaming_model_the_last_seconds_are_recognised_again_and_a_note_says_so() -> None:
    recognizer = listener()
    for seed, sentence in enumerate(sentences(3, seed=5, words=(8, 12))):
        waveform = torch.from_numpy(speak(sentence)).float()
        stream = Stream(recognizer, left_seconds=1.0)
        assert stream.note.startswith("at least the last 1 s are recognised again every 0.96 s, because Ear needs the")
        captions = streamed(stream, waveform, seed)
        assert final_text(captions) == sentence
        assert any(each.final for each in captions[:-1])
        assert any(each.partial for each in captions)
        words = [word for each in captions for word in each.final]
        [expected] = recognizer.transcribe([waveform], sample_rate=RATE)
        for word, reference in zip(words, expected.words, strict=True):
            assert abs(word.start - reference.start) < 0.1


def test_for_a_transducer_with_beam_search_the_streaming_decoder_is_suggested() -> None:
    recognizer = streaming_recognizer(resolved("decode=transducer_beam")["decode"], head=["head=transducer"])
    assert Stream(recognizer).note.endswith(
        "TransducerBeam needs the whole utterance at once (choose another, such as --decode transducer_greedy)"
    )


def test_a_stream_reports_the_number_of_samples_that_it_needs_to_continue() -> None:
    cached = CachedStream(shared("greedy"), StreamSettings(endpoint_seconds=None, settled_seconds=None))
    position = 0
    for _ in range(3):
        wanted = cached.num_wanted
        assert 0 < wanted <= (6 + 3 + 2) * 640
        cached.hear(speech(10.0, 1)[position : position + wanted - 1])
        assert (cached.num_wanted, cached.is_ready) == (1, False)
        cached.hear(speech(10.0, 1)[position + wanted - 1 : position + wanted])
        assert (cached.num_wanted, cached.is_ready) == (0, True)
        advance([cached])
        position += wanted
    again = LookBackStream(listener(), 0.5, 8.0)
    again.hear(torch.zeros(7999))
    assert (again.num_wanted, again.is_ready) == (1, False)


def test_each_look_back_stream_of_a_batch_gives_the_same_words_as_alone() -> None:
    recognizer = listener()
    texts = sentences(4, seed=8, words=(2, 9))
    waveforms = [torch.from_numpy(speak(text)).float() for text in texts]
    batches = []
    transcripts = recognizer.transcripts
    recognizer.transcripts = lambda utterances, *others: (
        batches.append(len(utterances)) or transcripts(utterances, *others)
    )
    streams = [LookBackStream(recognizer, 0.96, 1.0) for _ in texts]
    outputs: list[list[Captions]] = [[] for _ in texts]
    parts = [pieces(waveform, seed, 9000) for seed, waveform in enumerate(waveforms)]
    for turn in range(max(map(len, parts))):
        there = [n for n in range(len(texts)) if turn < len(parts[n])]
        for n in there:
            streams[n].hear(parts[n][turn], at_end=turn == len(parts[n]) - 1)
        for n, captions in zip(there, look_back_together([streams[n] for n in there]), strict=True):
            outputs[n].append(captions)
    assert [final_text(each) for each in outputs] == texts
    assert max(batches) > 1


def timed_words(text: str) -> Transcript:
    """Return a transcript of words that are given as `text@start-end`."""
    words = []
    for part in text.split():
        word, times = part.split("@")
        start, end = map(float, times.split("-"))
        words.append(Word(word, start, end, 1.0))
    return Transcript(tuple(words), (), 60.0)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param(
            "what@0.2-0.5 has@0.6-0.9 happened@2.1-2.6",
            "what@0.2-0.5 hath@0.8-1.1 happened@2.1-2.6 here@3.0-3.3",
            "what has happened here",
            id="a final word is spelt differently, and begins later",
        ),
        pytest.param(
            "what@0.2-0.5 has@0.6-0.9 happened@2.1-2.6",
            "what@0.2-0.5 has@0.5-0.6 hap@0.65-0.8 pened@2.1-2.6",
            "what has hap pened",
            id="the next word begins sooner",
        ),
        pytest.param(
            "the@0.1-0.2 mister@0.6-1.0 thomas@2.1-2.6",
            "the@0.1-0.2 mr@0.6-1.3 thomas@2.1-2.6",
            "the mister thomas",
            id="a final word is abbreviated",
        ),
        pytest.param(
            "no@0.1-0.2 no@0.8-1.0 no@2.1-2.6",
            "no@0.1-0.2 no@0.9-1.2 no@2.1-2.6 no@3.0-3.1",
            "no no no no",
            id="a word is spoken several times",
        ),
        pytest.param("a@0.1-0.2 word@0.4-0.9", "", "a word", id="the second result is empty"),
    ],
)
def test_words_that_are_recognised_again_are_neither_repeated_nor_cut(first: str, second: str, expected: str) -> None:
    stream = LookBackStream(listener(), 0.5, 8.0)
    stream.hear(torch.zeros(3 * RATE))
    early = stream.take(timed_words(first))
    assert early.final == list(timed_words(first).words[:2])
    stream.hear(torch.zeros(RATE), at_end=True)
    assert final_text([early, stream.take(timed_words(second))]) == expected


def test_a_stream_uses_its_own_number_of_threads_and_restores_that_of_torch() -> None:
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        for number in (1, 2, None):
            stream = Stream(shared("greedy")) if number == 1 else Stream(shared("greedy"), num_threads=number)
            stream.ears.hear = lambda *_: seen.append(torch.get_num_threads())
            stream.feed(speech(0.5, 1))
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2, 3]


@torch.no_grad()
def test_a_look_back_stream_stores_only_the_last_seconds_of_audio() -> None:
    stream = Stream(listener(), left_seconds=1.0)
    for _ in range(12):
        stream.feed(torch.zeros(5 * RATE))
        assert len(stream.ears.samples) <= (1.0 + 2.0 + 5.0) * RATE


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chunk_seconds": 0.0}, "chunk_seconds; got 0.0"),
        ({"right_seconds": 31.0}, "right_seconds; got 31.0"),
        ({"left_seconds": -1.0}, "left_seconds; got -1.0"),
        ({"num_threads": 0}, "num_threads; got 0"),
        (
            {"endpoint_seconds": math.nan},
            "endpoint_seconds; got nan",
        ),
    ],
)
def test_an_invalid_setting_is_reported_in_one_line(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        Stream(shared("greedy"), **settings)
    check_refusal(str(refusal.value), message)


def test_a_look_ahead_that_the_model_does_not_support_is_refused() -> None:
    with refused(InputError, "right_seconds", got=1):
        Stream(listener(), right_seconds=1.0)


def test_a_model_without_chunk_frames_needs_chunk_seconds() -> None:
    recognizer = streaming_recognizer()
    recognizer.model.encoder.chunk_frames = None
    with refused(InputError, "chunk_seconds ... encoder.chunk_frames"):
        Stream(recognizer)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_recognising_an_hour_needs_hardly_more_memory_than_a_minute() -> None:
    code = """
import resource, torch
from tests.test_streaming import speech, streaming_recognizer
from asr import Stream
torch.set_num_threads(1)
stream = Stream(streaming_recognizer(dtype=torch.float32), chunk_seconds=2.0)
words = 0
for second in range(3600):
    words += len(stream.feed(speech(1.0, second % 50, torch.float32)).final)
    if second == 60:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(words)
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    minute, hour, words = map(int, run.stdout.split())
    assert hour < minute + 8 * 1024, "KiB"
    assert words > 3600


@pytest.mark.parametrize("name", [pytest.param("transducer alone", marks=pytest.mark.slow), "tdt alone"])
def test_a_long_recording_is_cut_where_a_transducer_without_ctc_emits_nothing(name: str) -> None:
    """The tokens of this model depend only on frames, so cutting the recording into segments does not change them."""
    recognizer = transducer(name)
    with torch.no_grad():
        recognizer.model.head.joiner.of_tokens.weight.zero_()
    recognizer.model.float()
    waveform = speech(40.0, 8, torch.float32)
    chunks = Inference(chunks=ChunkBounds(4.8, 1.2))  # multiples of the encoder's own chunks
    transcript = recognizer.transcribe(waveform, chunks, sample_rate=RATE)
    expected = whole(recognizer, waveform)
    assert transcript.text.replace(" ", "") == expected.replace(" ", "")
    assert len(expected.replace(" ", "")) > 12
    starts = [word.start for word in transcript.words]
    assert starts == sorted(starts)
    assert all(0 <= word.start < word.end <= 40.0 for word in transcript.words)
    assert all(0 < word.confidence < 1 for word in transcript.words)


def test_a_net_with_non_finite_outputs_is_reported_even_without_a_frame_head() -> None:
    recognizer = transducer("tdt alone")
    with torch.no_grad():
        next(recognizer.model.encoder.parameters()).fill_(math.nan)
    recognizer.model.float()
    with refused(InputError, "NaN"):
        recognizer.transcribe(speech(1.0, 1, torch.float32), sample_rate=RATE)
    with refused(InputError, "NaN"):
        Stream(recognizer).feed(speech(2.0, 1, torch.float32))
