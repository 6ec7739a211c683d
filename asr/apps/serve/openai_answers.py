"""Answers in OpenAI's format, from transcripts.

*Source*: OpenAI's API reference, objects "Transcription", "Verbose transcription", "Stream event", "Model".

Each token of `logprobs` is a word with the space before it, so that the joined tokens are the text. Its logprob is the
natural logarithm of the word's confidence. Segments are the cues of the subtitles.
"""

import json
import math
import zlib
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from asr.apps.serve.schema import Seconds
from asr.core.recognition.subtitles import cues
from asr.core.recognition.transcript import Transcript, Word
from asr.errors import InputError
from asr.interfaces import Tokenizer

MIN_CONFIDENCE = 1e-4  # transcripts round confidences to four digits; JSON cannot represent the logarithm of 0
SEEKS_A_SECOND = 100  # Whisper's `seek` counts frames of 10 ms
UNDETERMINED = "und"  # ISO 639-2 code of an undetermined language


class OpenAILogprob(BaseModel):
    """A word with the logarithm of its confidence."""

    model_config = ConfigDict(extra="forbid")
    token: str = Field(description="a word, with the space before it")
    bytes: list[int] = Field(description="the token in UTF-8")
    logprob: float = Field(
        le=0, description="natural logarithm of the word's confidence, which is raised to at least 0.0001"
    )


class OpenAIUsage(BaseModel):
    """Amount of audio transcribed."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["duration"]
    seconds: Seconds = Field(description="duration of the recording")


class OpenAITranscription(BaseModel):
    """Answer with response_format `json`."""

    model_config = ConfigDict(extra="forbid")
    text: str
    usage: OpenAIUsage
    logprobs: list[OpenAILogprob] | None = Field(default=None, description="with include[]=logprobs")


class OpenAIWord(BaseModel):
    """A word with its times."""

    model_config = ConfigDict(extra="forbid")
    word: str
    start: Seconds
    end: Seconds


class OpenAISegment(BaseModel):
    """Words of one subtitle."""

    model_config = ConfigDict(extra="forbid")
    id: int = Field(ge=0, description="counted from 0")
    seek: int = Field(ge=0, description="start, in hundredths of a second")
    start: Seconds
    end: Seconds
    text: str
    tokens: list[int] = Field(
        description="token ids of the text; empty if the model's tokenizer does not cover the text"
    )
    temperature: float = Field(description="0: the search is deterministic")
    avg_logprob: float = Field(le=0, description="mean of the logarithms of the words' confidences")
    compression_ratio: float = Field(gt=0, description="size of the text divided by its zlib-compressed size")
    no_speech_prob: float = Field(description="always 0: segments contain speech")


class OpenAIVerboseTranscription(BaseModel):
    """Answer with response_format `verbose_json`."""

    model_config = ConfigDict(extra="forbid")
    language: str = Field(
        description="language of the request or the server's --language; und (undetermined) without them"
    )
    duration: Seconds = Field(description="duration of the recording, in seconds")
    text: str
    usage: OpenAIUsage
    segments: list[OpenAISegment] | None = Field(default=None, description="with timestamp_granularities[]=segment")
    words: list[OpenAIWord] | None = Field(default=None, description="with timestamp_granularities[]=word")


class OpenAIModel(BaseModel):
    """The served model."""

    model_config = ConfigDict(extra="forbid")
    id: str
    object: Literal["model"]
    created: int = Field(description="time of the server's start, in seconds since 1970; models have no creation time")
    owned_by: str


class OpenAIModels(BaseModel):
    """List that contains only the served model."""

    model_config = ConfigDict(extra="forbid")
    object: Literal["list"]
    data: list[OpenAIModel]


class OpenAIErrorDetail(BaseModel):
    """The reason for a failed request."""

    model_config = ConfigDict(extra="forbid")
    message: str = Field(description="one line")
    type: Literal["invalid_request_error", "server_error"]
    param: str | None = Field(description="the invalid field")
    code: str | None


class OpenAIProblem(BaseModel):
    """Answer to a failed request."""

    model_config = ConfigDict(extra="forbid")
    error: OpenAIErrorDetail


def plain(transcript: Transcript, with_logprobs: bool) -> dict[str, Any]:
    """Return a transcript in the format `json`."""
    more = {"logprobs": logprobs(transcript.words)} if with_logprobs else {}
    return {"text": transcript.text, "usage": _usage(transcript), **more}


def verbose(
    transcript: Transcript, language: str | None, granularities: Sequence[str], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return a transcript in the format `verbose_json`.

    Args:
        transcript: transcript of the recording.
        language: language of the recording; None: unknown.
        granularities: "segment", "word", or both.
        tokenizer: tokenizer of the model.
    """
    answer: dict[str, Any] = {
        "language": language or UNDETERMINED,
        "duration": round(transcript.duration, 3),
        "text": transcript.text,
        "usage": _usage(transcript),
    }
    if "segment" in granularities:
        answer["segments"] = _segments(transcript, tokenizer)
    if "word" in granularities:
        words = transcript.rounded().words
        answer["words"] = [{"word": word.text, "start": word.start, "end": word.end} for word in words]
    return answer


def delta(words: Sequence[Word], is_first: bool, with_logprobs: bool) -> dict[str, Any]:
    """Return the event with the words of a segment; the joined deltas of a stream are the stream's text."""
    text = ("" if is_first else " ") + " ".join(word.text for word in words)
    more = {"logprobs": logprobs(words, is_first)} if with_logprobs else {}
    return {"type": "transcript.text.delta", "delta": text, **more}


def done(transcript: Transcript, with_logprobs: bool) -> dict[str, Any]:
    """Return the last event of a stream; `usage` is left out, because it counts tokens of a language model."""
    more = {"logprobs": logprobs(transcript.words)} if with_logprobs else {}
    return {"type": "transcript.text.done", "text": transcript.text, **more}


def event(data: dict[str, Any]) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


def logprobs(words: Sequence[Word], is_first: bool = True) -> list[dict[str, Any]]:
    """Return words as tokens with their log-probability."""
    tokens = [word.text if is_first and number == 0 else f" {word.text}" for number, word in enumerate(words)]
    return [
        {"token": token, "bytes": [*token.encode()], "logprob": _logprob(word)}
        for token, word in zip(tokens, words, strict=True)
    ]


def _logprob(word: Word) -> float:
    return round(math.log(max(word.confidence, MIN_CONFIDENCE)), 4)


def _usage(transcript: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(transcript.duration, 3)}


def _segments(transcript: Transcript, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    segments = []
    for number, cue in enumerate(cues(transcript)):
        text = " ".join(word.text for word in cue.words)
        content = text.encode()
        segments.append(
            {
                "id": number,
                "seek": cue.start * SEEKS_A_SECOND // 1000,
                "start": cue.start / 1000,
                "end": cue.end / 1000,
                "text": text,
                "tokens": _tokens(text, tokenizer),
                "temperature": 0.0,
                "avg_logprob": round(sum(map(_logprob, cue.words)) / len(cue.words), 4),
                "compression_ratio": round(len(content) / len(zlib.compress(content)), 4),
                "no_speech_prob": 0.0,
            }
        )
    return segments


def _tokens(text: str, tokenizer: Tokenizer) -> list[int]:
    try:
        return tokenizer.encode(text)
    except InputError:  # the normaliser's output may contain characters without a token, such as digits
        return []
