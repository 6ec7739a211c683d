"""<EOU> ends a turn: the prediction network starts anew, and a stream reports the end. <EOB> is only reported."""

import asyncio
import json
from copy import deepcopy
from functools import cache
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from asr import Stream
from asr.base.text.hidden_pieces import END_OF_BACKCHANNEL, END_OF_UTTERANCE, ENDS
from asr.base.text.normalize import as_written
from asr.components.decode.monotonic_beam import MonotonicBeam
from asr.components.decode.transducer_beam import TransducerBeam
from asr.components.decode.transducer_greedy import TransducerGreedy
from asr.core.data.tokenizer_extension import checked_pieces
from asr.core.recognition.captions import Captions
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError
from asr.interfaces import BLANK_ID
from tests.conftest import resolved
from tests.fusion import Pieces, search_settings
from tests.identity import decoded
from tests.listener import listener
from tests.live import END, RATE, events, final_words, live, pcm, say
from tests.refusals import refused
from tests.test_extension import EVERY, TOKENIZERS
from tests.test_streaming import pieces, speech, streaming_recognizer, transducer, words_of_one_pass
from tests.tones import sentences, speak
from tests.transducers import DIM, PIECES, PREDICTORS, SMALL, random_head

NAMES = [*PIECES, *ENDS]
EOU = NAMES.index(END_OF_UTTERANCE)


class NamedPieces(Pieces):
    """Pieces of which the last two are hidden."""

    def __init__(self) -> None:
        super().__init__([*PIECES, "", ""])
        self.names = NAMES


def head(predictor: str, *more: str, seed: int = 0) -> Any:
    config = resolved("head=transducer", f"head/predictor={predictor}", "head.ctc_weight=0", *SMALL, *more)["head"]
    return random_head(config, len(NAMES), seed, scale=3.0)


def greedy(made: Any, max_symbols: int = 3) -> TransducerGreedy:
    return TransducerGreedy(made, NamedPieces(), as_written, max_symbols=max_symbols)  # type: ignore[arg-type]


def plain_search(made: Any, encoder_out: Tensor, restarts: bool = True) -> list[int]:
    """Search one utterance (T', D) frame by frame; the network reads all tokens of the present turn at once."""
    tokens: list[int] = []
    for frame in made.joiner.of_frames(encoder_out):
        for _ in range(3):
            turns = [number for number, token in enumerate(tokens, 1) if token == EOU]
            turn = tokens[turns[-1] if turns and restarts else 0 :]
            before = made.predictor(torch.tensor([turn], dtype=torch.int64))[0, -1]
            token = int(made.joiner(frame, made.joiner.of_tokens(before)).argmax())
            if token == BLANK_ID:
                break
            tokens.append(token)
    return tokens


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_greedy_search_reads_only_the_tokens_of_the_present_turn(predictor: str) -> None:
    num_changed = 0
    for seed in range(4):
        made, lengths = head(predictor, seed=seed), torch.tensor([9, 0, 14])
        encoder_out = torch.randn(len(lengths), 14, DIM, dtype=torch.float64)
        for [hypothesis], row, length in zip(
            decoded(greedy(made), encoder_out, lengths), encoder_out, lengths.tolist(), strict=True
        ):
            assert hypothesis.tokens == plain_search(made, row[:length])
            num_changed += hypothesis.tokens != plain_search(made, row[:length], restarts=False)
    assert num_changed, "some texts must depend on the tokens of the turn before"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_the_next_utterance_is_recognised_as_from_the_initial_state(dtype: torch.dtype) -> None:
    compared = 0
    for seed in range(8):
        made = head("lstm", seed=seed).to(dtype)
        encoder_out = torch.randn(1, 20, DIM, dtype=torch.float64).to(dtype)
        [[whole]] = decoded(greedy(made, 30), encoder_out, torch.tensor([20]))
        if EOU not in whole.tokens:
            continue
        end = whole.tokens.index(EOU)
        spans = whole.frames or []
        begin = spans[end].start  # a frame may have the last token of a turn and the first of the next one
        [[alone]] = decoded(greedy(made, 30), encoder_out[:, begin:], torch.tensor([20 - begin]))
        if spans.count(spans[end]) < 30:
            assert alone.tokens == whole.tokens[end + 1 :]
            compared += 1
    assert compared


@pytest.mark.parametrize("search", ["transducer_beam", "monotonic_beam"])
def test_beam_search_equals_one_whose_network_cannot_tell_the_end_of_a_turn_from_the_beginning(search: str) -> None:
    """The prediction network reads one token, so that it starts anew where the embedding of <EOU> is the blank's."""
    made = head("stateless", "head.predictor.num_tokens=1", seed=1)
    other = deepcopy(made)
    with torch.no_grad():
        other.predictor.embedding.weight[EOU] = other.predictor.embedding.weight[BLANK_ID]
    make: Any = {"transducer_beam": TransducerBeam, "monotonic_beam": MonotonicBeam}[search]
    encoder_out, lengths = torch.randn(2, 12, DIM, dtype=torch.float64), torch.tensor([12, 7])
    nbests = [
        decoded(make(each, names, as_written, **search_settings(search, beam_size=6)), encoder_out, lengths)
        for each, names in ((made, NamedPieces()), (other, Pieces(NamedPieces().pieces)))
    ]
    assert any(EOU in each.tokens for each in nbests[0][0])
    for ours, theirs in zip(*nbests, strict=True):
        assert [each.tokens for each in ours] == [each.tokens for each in theirs]
        assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=1e-9)


def test_a_model_without_the_piece_has_its_own_head() -> None:
    made = head("lstm")
    assert TransducerGreedy(made, Pieces(PIECES), as_written, max_symbols=3).head is made  # type: ignore[arg-type]


# ---- streams


@cache
def speaker(name: str) -> Recognizer:
    return transducer(name, ENDS)


def ends_of_one_pass(recognizer: Recognizer, waveform: Tensor) -> list[int]:
    """Return the number of words before each <EOU> that follows a word, in one pass over the waveform."""
    model, features = recognizer.model, recognizer.model.features(waveform)
    with torch.inference_mode():
        [[best, *_]] = recognizer.hypotheses(model(features[None], torch.tensor([len(features)])))
    end = list(model.tokenizer.names).index(END_OF_UTTERANCE)
    cuts = [number for number, token in enumerate(best.tokens) if token == end]
    return sorted({len(model.tokenizer.decode(best.tokens[:cut]).split()) for cut in cuts} - {0})


def ends_of(captions: list[Captions]) -> list[int]:
    """Return the number of words before each end."""
    numbers = accumulate(len(each.final) for each in captions)
    return [number for number, each in zip(numbers, captions, strict=True) if each.is_end]


@pytest.mark.parametrize("settled", [None, 0.5])
@pytest.mark.parametrize("name", ["transducer alone", "tdt alone"])
def test_words_times_and_ends_of_a_stream_are_those_of_one_pass_for_any_pieces(name: str, settled: Any) -> None:
    recognizer = speaker(name)
    num_ends = 0
    for seed in range(4):
        waveform = speech(4.0 + seed, seed)
        expected = words_of_one_pass(recognizer, waveform)
        stream = Stream(recognizer, endpoint_seconds=None, settled_seconds=settled)
        captions = [stream.feed(piece) for piece in pieces(waveform, seed, most=2500)]  # less than a chunk
        ends = ends_of(captions)
        num_before = sum(len(each.final) for each in captions)
        captions.append(stream.finish())
        words = [word for each in captions for word in each.final]
        assert [word.text for word in words] == [word.text for word in expected]
        for word, other in zip(words, expected, strict=True):
            assert (word.start, word.end) == pytest.approx(
                (other.start, other.end), abs=1.01 * recognizer.model.frame_seconds
            )
        assert ends == [end for end in ends_of_one_pass(recognizer, waveform) if end <= num_before]
        num_ends += len(ends)
    assert num_ends > 5


def test_a_backchannel_is_reported_with_its_words_and_changes_no_word() -> None:
    recognizer, waveform = transducer("tdt alone", [END_OF_BACKCHANNEL]), speech(6.0, 1)
    stream = Stream(recognizer, endpoint_seconds=None, settled_seconds=None)
    captions = [*map(stream.feed, waveform.split(1600)), stream.finish()]
    assert any(each.is_backchannel for each in captions)
    assert [each.is_end for each in captions[:-1]] == [False] * (len(captions) - 1)
    words = [word.text for each in captions for word in each.final]
    assert words == [word.text for word in words_of_one_pass(recognizer, waveform)]
    assert set("".join(words)) <= set("abcdefgh")


@pytest.mark.parametrize("name", ["ctc", "tdt alone"])
def test_a_flush_makes_all_words_final_and_the_stream_continues(name: str) -> None:
    recognizer = streaming_recognizer() if name == "ctc" else speaker(name)
    waveform = speech(5.0, 2)
    stream = Stream(recognizer, endpoint_seconds=None, settled_seconds=None)
    parts = waveform.split(1600)
    captions = []
    while len(captions) < len(parts) // 2 or not captions[-1].partial:
        captions.append(stream.feed(parts[len(captions)]))
    middle = len(captions)
    flushed = stream.flush()
    assert [word.text for word in flushed.final] == [word.text for word in captions[-1].partial]
    assert flushed.is_end
    assert not flushed.partial
    again = stream.flush()
    assert again == Captions([], [], is_end=True)
    captions += [flushed, *(stream.feed(piece) for piece in parts[middle:]), stream.finish()]
    letters = "".join(word.text for each in captions for word in each.final)
    assert letters == "".join(word.text for word in words_of_one_pass(recognizer, waveform))  # a word may be cut


def test_a_flush_recognises_all_audio_of_a_model_that_is_not_a_streaming_model() -> None:
    recognizer = listener()
    waveform = torch.cat([torch.from_numpy(speak(text)) for text in sentences(2, seed=5)])
    stream = Stream(recognizer)
    fed = stream.feed(waveform)
    flushed = stream.flush()
    words = [word.text for word in [*fed.final, *flushed.final]]
    assert " ".join(words) == recognizer.transcribe([waveform], sample_rate=RATE)[0].text
    assert flushed.is_end
    assert not flushed.partial
    assert not stream.finish().final


# ---- the server


def test_a_flush_over_the_websocket_gives_the_words_of_a_flushed_stream() -> None:
    recognizer = streaming_recognizer(dtype=torch.float32)
    waveform = (speech(5.0, 2, torch.float32) * 2**15).round() / 2**15
    first, second = waveform[:40_001], waveform[40_001:]
    stream = Stream(recognizer)
    expected = [*stream.feed(first).final, *stream.flush().final, *stream.feed(second).final, *stream.finish().final]

    async def talk() -> Any:
        async with live(recognizer) as server, server.connect() as connection:
            await connection.send(json.dumps({"sample_rate": RATE}))
            for message in (pcm(first)[:70_001], pcm(first)[70_001:], '{"flush": true}', pcm(second), END):
                await connection.send(message)
            return await events(connection)

    replies = asyncio.run(talk())
    assert "end" in replies[-1]
    assert [(word["text"], word["start"]) for word in final_words(replies)] == [
        (word.text, round(word.start, 3)) for word in expected
    ]
    flushes = [event for event in replies if event.get("is_end") and event["heard"] < 3]
    assert flushes[-1]["heard"] == pytest.approx(40_001 / RATE, abs=1e-3)
    assert flushes[-1]["partial"] == ""


def test_the_websocket_reports_the_ends_of_turns_and_backchannels() -> None:
    made, waveform = transducer("transducer alone", ENDS), speech(5.0, 1, torch.float32)
    made.model.float()
    stream = Stream(made)
    captions = [*(stream.feed(piece) for piece in waveform.split(1600)), stream.finish()]

    async def talk() -> Any:
        async with live(made) as server:
            return await say(server, [pcm(piece) for piece in waveform.split(1600)], pause=0.02)

    replies = asyncio.run(talk())
    assert [word["text"] for word in final_words(replies)] == [word.text for each in captions for word in each.final]
    assert any(event.get("is_end") for event in replies[:-2])
    assert any(event.get("is_backchannel") for event in replies) == any(each.is_backchannel for each in captions)


# ---- training


@EVERY
def test_appended_ends_are_hidden_and_end_words(make: Any) -> None:
    tokenizer = make()
    before = tokenizer.encode("abba bade")
    tokenizer.extend(checked_pieces([END_OF_UTTERANCE], tokenizer, "init.extend_tokenizer"))
    end = list(tokenizer.names).index(END_OF_UTTERANCE)
    assert tokenizer.encode("abba bade") == before
    assert tokenizer.decode([*before, end]) == "abba bade"
    assert tokenizer.decode([*before, end, *before]) == "abba bade abba bade"
    with refused(InputError, "init.extend_tokenizer ... <EOU>"):
        checked_pieces([END_OF_UTTERANCE], tokenizer, "init.extend_tokenizer")


def test_each_training_text_ends_with_the_piece() -> None:
    reference = transducer("tdt alone", ENDS).model.reference
    tokenizer = transducer("tdt alone", ENDS).model.tokenizer
    end = list(tokenizer.names).index(END_OF_UTTERANCE)
    assert reference.tokens("abcd", None) == [*tokenizer.encode("abcd"), end]
    assert streaming_recognizer().model.reference.tokens("abcd", None) == tokenizer.encode("abcd")


def test_a_tokenizer_of_characters_with_ends_is_restored_from_its_files() -> None:
    tokenizer, again = TOKENIZERS["char"](), TOKENIZERS["char"]()
    tokenizer.extend([END_OF_UTTERANCE])
    again.load(tokenizer.files())
    assert (again.names, again.pieces, again.vocab_size) == (tokenizer.names, tokenizer.pieces, tokenizer.vocab_size)
