"""The recordings of a batch are decoded together; an error of one of them concerns it alone."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.core.build import build_features, build_recognizer, build_tokenizer
from asr.core.data.batch_plan import BatchBounds
from asr.core.data.manifest import Utterance
from asr.core.recognition.chunks import ChunkBounds
from asr.core.recognition.inference import Inference
from asr.core.recognition.long_form import Segment
from asr.core.recognition.pieces import Piece, together
from asr.core.recognition.recognizer import Recognizer
from asr.errors import AudioError
from asr.interfaces import Hypothesis
from tests.conftest import resolved
from tests.listener import listener
from tests.tones import SAMPLE_RATE, speak

TEXTS = ["abc", "fed", "cab bad", "dad", "face"]
UTTERANCES = [Utterance(f"{text}.wav", 2.0, text, text) for text in TEXTS]


def load(utterance: Utterance, sample_rate: int) -> Tensor:
    """Return the waveform of an utterance, which has 2 s."""
    waveform = torch.from_numpy(speak(utterance.text))
    return torch.cat([waveform, waveform.new_zeros(2 * SAMPLE_RATE)])[: 2 * SAMPLE_RATE]


def recognized(recognizer: Recognizer, **bounds: Any) -> dict[str, str]:
    """Return the text or the reason of each utterance."""
    options = Inference(batches=BatchBounds(**{"batch_seconds": 100, "max_utterances": 64} | bounds), load=load)
    found = {}
    for result in recognizer.recognize(UTTERANCES, options):
        utterance, outcome = result
        found[utterance.id] = outcome if isinstance(outcome, str) else outcome.text
    return found


@pytest.fixture
def recognizer() -> Recognizer:
    return listener()


class Spy:
    """Record the number of recordings in each search of a recogniser; recordings of `guilty` texts fail."""

    def __init__(self, recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch, guilty: Sequence[str] = ()) -> None:
        self.sizes: list[int] = []
        search = recognizer.decode.search

        def watched(evidence: Any, **values: float) -> list[list[Hypothesis]]:
            found = search(evidence, **values)
            self.sizes.append(len(found))
            if any(recognizer.text(hypotheses[0]) in guilty for hypotheses in found):
                raise AudioError("this recording cannot be decoded.")
            return found

        monkeypatch.setattr(recognizer.decode, "search", watched)


@pytest.mark.parametrize(
    ("bounds", "sizes"),
    [({}, [5]), ({"max_utterances": 2}, [2, 2, 1]), ({"batch_seconds": 6}, [3, 2]), ({"batch_seconds": 1}, [1] * 5)],
)
def test_a_batch_is_decoded_in_one_search(
    bounds: dict[str, float], sizes: list[int], recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(recognizer, monkeypatch)
    assert recognized(recognizer, **bounds) == dict(zip(TEXTS, TEXTS, strict=True))
    assert sorted(spy.sizes) == sorted(sizes)


def test_segments_of_a_long_recording_are_decoded_together(
    recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(recognizer, monkeypatch)
    silence = torch.zeros(SAMPLE_RATE)
    waveform = torch.cat([part for text in TEXTS * 8 for part in (torch.from_numpy(speak(text)), silence)])
    transcript = recognizer.transcribe(waveform, sample_rate=SAMPLE_RATE)
    assert transcript.text == " ".join(TEXTS * 8)
    assert max(spy.sizes) > 1


def test_an_error_of_a_search_concerns_only_its_recording(
    recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(recognizer, monkeypatch, guilty=["dad"])
    found = recognized(recognizer)
    assert "cannot be decoded" in found.pop("dad")
    assert found == {text: text for text in TEXTS if text != "dad"}
    assert spy.sizes == [5, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("part", ["head", "encoder"])
def test_a_recording_whose_output_is_nan_is_rejected_alone_and_reaches_no_search(
    part: str, recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {"head": recognizer.model.head, "encoder": recognizer.model.encoder}[part]
    guilty = recognizer.model.features(load(UTTERANCES[1], SAMPLE_RATE))
    log_probs_of_guilty = recognizer.log_probs(recognizer.model(guilty[None], torch.tensor([len(guilty)])).out[0])

    def with_nan(*given: Any) -> Any:
        out = work(*given)
        rows = out if part == "head" else out.out
        is_guilty = [torch.equal(row.log_softmax(dim=-1), log_probs_of_guilty) for row in rows]
        rows[torch.tensor(is_guilty), 3] = torch.nan
        return out

    name = "log_probs" if part == "head" else "forward"
    work = getattr(bad, name)
    monkeypatch.setattr(bad, name, with_nan)
    searched: list[Tensor] = []
    evidence = recognizer.decode.evidence
    monkeypatch.setattr(
        recognizer.decode, "evidence", lambda encoded: (searched.append(encoded.out), evidence(encoded))[1]
    )
    found = recognized(recognizer)
    assert "NaN" in found.pop("fed")
    assert found == {text: text for text in TEXTS if text != "fed"}
    assert not any(out.isnan().any() for out in searched)


def test_any_other_error_of_a_search_ends_recognition(recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(evidence: Any, **values: float) -> list[list[Hypothesis]]:
        raise RuntimeError("a fault of the program")

    monkeypatch.setattr(recognizer.decode, "search", fail)
    with pytest.raises(RuntimeError, match="a fault of the program"):
        recognized(recognizer)


def test_a_failed_recording_is_encoded_no_further(recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(evidence: Any, **values: float) -> list[list[Hypothesis]]:
        raise AudioError("this recording cannot be decoded.")

    encoded: list[int] = []
    encoder = recognizer.model.encoder
    forward = encoder.forward
    monkeypatch.setattr(encoder, "forward", lambda *given: (encoded.append(1), forward(*given))[1])
    monkeypatch.setattr(recognizer.decode, "search", fail)
    long = torch.cat([torch.from_numpy(speak("abc fed")), torch.zeros(8_000)] * 80)
    options = Inference(batches=BatchBounds(batch_seconds=8, max_utterances=64), chunks=ChunkBounds(4, 0.5))
    with pytest.raises(AudioError, match="cannot be decoded"):
        recognizer.transcribe(long, options, sample_rate=SAMPLE_RATE)
    assert len(encoded) < 0.3 * len(long) / SAMPLE_RATE / 4


def pieces(*kinds: str) -> Iterator[Piece]:
    """Yield pieces: a segment of one second, the end of its recording, an unreadable recording, or raise an error."""
    for number, kind in enumerate(kinds):
        if kind == "fault":
            raise RuntimeError("too little memory")
        segment = Segment(0.0, torch.zeros(101, 2)) if kind == "segment" else None
        error = AudioError("unreadable") if kind == "unreadable" else None
        yield Piece(replace(UTTERANCES[0], id=str(number)), segment, error)


def groups(*kinds: str, max_utterances: int = 3) -> Iterator[int]:
    """Yield the sizes of the groups of such pieces."""
    bounds = BatchBounds(batch_seconds=100, max_utterances=max_utterances)
    yield from map(len, together(pieces(*kinds), bounds, 0.01))


def test_unreadable_recordings_are_passed_on_at_once() -> None:
    assert [*groups("unreadable", "unreadable", "segment", "end")] == [1, 1, 2]
    assert max(groups("segment", "end", *["unreadable"] * 100)) <= 6


def test_an_error_of_the_next_batch_does_not_lose_the_batch_before_it() -> None:
    found = groups("segment", "end", "segment", "end", "fault")
    assert next(found) == 4
    with pytest.raises(RuntimeError, match="memory"):
        next(found)


@pytest.mark.parametrize("decode", ["greedy", "beam"])
def test_the_log_probs_of_a_batch_are_computed_once(decode: str) -> None:
    config = resolved("encoder=conformer_xs", "head=ctc", f"decode={decode}")
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit(["abcdef "])
    recognizer = build_recognizer(config, tokenizer, features)
    shapes: list[tuple[int, ...]] = []
    recognizer.model.head.linear.register_forward_hook(lambda _, given, out: shapes.append(tuple(out.shape[:2])))  # type: ignore[union-attr, operator]
    dim = recognizer.model.encoder.output_dim
    first, second = recognizer.decoded([torch.randn(9, dim), torch.randn(5, dim)])
    assert not isinstance(first, AudioError)
    assert not isinstance(second, AudioError)
    assert shapes == [(2, 9)]
