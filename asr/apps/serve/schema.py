"""Requests and answers, as the OpenAPI page shows them."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]

MAX_ALTERNATIVES = 100  # bounded because recognition of a long recording compares all pairs of alternatives
LANGUAGE_OF_PROMPT = "language of the recording, for a model with a prompt for it (default: the one of the server)"


class WordHeard(BaseModel):
    """A word with its times and confidence."""

    model_config = ConfigDict(extra="forbid")
    text: str = Field(description="normalised")
    start: Seconds = Field(description="seconds from the beginning of the recording")
    end: Seconds = Field(description="seconds from the beginning of the recording")
    confidence: Share = Field(description="probability that the word is correct")


class Reading(BaseModel):
    """A recognised text with its score."""

    model_config = ConfigDict(extra="forbid")
    text: str
    score: float = Field(description="the decoder's score, a natural logarithm")


class Transcription(BaseModel):
    """The fields of `python -m asr.transcribe --format json`."""

    model_config = ConfigDict(extra="forbid")
    id: str = Field(description="the name of the uploaded file")
    text: str
    language: str | None = Field(default=None, description="language that the model wrote as a tag, if it writes tags")
    duration: Seconds = Field(description="duration of the recording, in seconds")
    speech: bool = Field(description="false: the recording contains only silence or steady noise, so it has no words")
    confidence: Share | None = Field(description="mean of the words' confidences; null without words")
    score: float | None = Field(description="the decoder's score of the text")
    words: list[WordHeard] = Field(description="words in order")
    alternatives: list[Reading] = Field(description="hypotheses, best first; the first hypothesis is the text itself")


class Problem(BaseModel):
    """The reason for a failed request."""

    detail: str = Field(description="one line")


class Health(BaseModel):
    """State of the server, and its model."""

    ready: bool
    model: str = Field(description="name of the model, without its folder")
    waiting: int = Field(ge=0, description="number of recordings in the queue")
    streams: int = Field(ge=0, description="number of open streams")


class Options(BaseModel):
    """Options of the query; other options are refused, so that misspelt options are noticed."""

    model_config = ConfigDict(extra="forbid")
    nbest: int = Field(
        default=1,
        ge=1,
        le=MAX_ALTERNATIVES,
        description="maximum number of alternatives; more than 1 needs a server with beam search",
    )
    language: str | None = Field(default=None, description=LANGUAGE_OF_PROMPT)


class StreamOptions(BaseModel):
    """The first message of a stream; other fields are refused, so that misspelt options are noticed."""

    model_config = ConfigDict(extra="forbid")
    sample_rate: int = Field(ge=8_000, le=192_000, description="sample rate of the audio, in Hz")
    chunk_seconds: float | None = Field(
        default=None,
        ge=0.08,
        le=5,
        description="length of a chunk; shorter chunks show words sooner, with more errors",
    )
    latency: float | None = Field(
        default=None,
        gt=0,
        le=60,
        description="one of the latencies of a model that has a list of them, in seconds, in place of chunk_seconds",
    )
    language: str | None = Field(default=None, description=LANGUAGE_OF_PROMPT)


UPLOADED: dict[str, Any] = {
    "type": "string",
    "format": "binary",
    "description": "one recording: WAV, FLAC, Ogg (Vorbis, Opus), MP3, AIFF, and with the extra media M4A, MP4, WebM",
}


def upload_body(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the body of a request with a recording, and further fields of the form, for OpenAPI.

    FastAPI would read a declared upload before the limits are checked.
    """
    schema = {
        "type": "object",
        "required": ["file"],
        "additionalProperties": False,
        "properties": {"file": UPLOADED, **properties},
    }
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}


PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The form is malformed."},
    403: {"model": Problem, "description": "A page of another site sent the request."},
    408: {"model": Problem, "description": "The upload took too long."},
    413: {"model": Problem, "description": "Too many bytes, or too many seconds of audio."},
    415: {"model": Problem, "description": "The body is not a multipart form."},
    421: {"model": Problem, "description": "The request is for an unknown host."},
    422: {"model": Problem, "description": "The file is not usable audio, or a field or option is invalid."},
    500: {"model": Problem, "description": "The server failed."},
    507: {"model": Problem, "description": "The server has no disk space for uploads."},
    503: {
        "model": Problem,
        "description": "The queue is full, or the server is stopping.",
        "headers": {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds until the next attempt"}},
    },
}
