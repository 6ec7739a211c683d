"""What goes over the wire, as the OpenAPI page shows it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]

MOST_ALTERNATIVES = 100  # of a long recording, pairs of them are compared


class WordHeard(BaseModel):
    """A word, when it is said, and how sure the recogniser is of it."""

    model_config = ConfigDict(extra="forbid")
    text: str = Field(description="normalised")
    start: Seconds = Field(description="seconds from the beginning of the recording")
    end: Seconds = Field(description="seconds from the beginning of the recording")
    confidence: Share = Field(description="that the word is right")


class Reading(BaseModel):
    """A recognised text with its score."""

    model_config = ConfigDict(extra="forbid")
    text: str
    score: float = Field(description="as the decoder ranks it, a natural logarithm")


class Transcription(BaseModel):
    """The fields of `python -m asr.transcribe --format json`."""

    model_config = ConfigDict(extra="forbid")
    id: str = Field(description="the name that the file was sent under")
    text: str
    duration: Seconds = Field(description="of the recording, in seconds")
    speech: bool = Field(description="false: silence, or steady noise, of which no word is written")
    confidence: Share | None = Field(description="the mean of the words'; null without words")
    score: float | None = Field(description="of the text, as the decoder ranks it")
    words: list[WordHeard] = Field(description="in order")
    alternatives: list[Reading] = Field(description="the best first, which is the text itself")


class Problem(BaseModel):
    """Why a request was not answered."""

    detail: str = Field(description="one line")


class Health(BaseModel):
    """Whether the server is ready, and which model it has."""

    ready: bool
    model: str = Field(description="its name, without the folders it lies in")
    waiting: int = Field(ge=0, description="recordings that wait for the net")
    streams: int = Field(ge=0, description="that are open")


class Options(BaseModel):
    """What the query may hold; anything else is refused, since a misspelt option would go unnoticed."""

    model_config = ConfigDict(extra="forbid")
    nbest: int = Field(
        default=1,
        ge=1,
        le=MOST_ALTERNATIVES,
        description="how many alternatives there may be; more than 1 takes a server with beam search",
    )


class StreamOptions(BaseModel):
    """The first message of a stream; anything else in it is refused, since a misspelt option would go unnoticed."""

    model_config = ConfigDict(extra="forbid")
    sample_rate: int = Field(ge=8_000, le=192_000, description="of what will come, in Hz")
    chunk_seconds: float | None = Field(
        default=None, ge=0.08, le=5, description="that are heard at once; less is sooner shown, and has more errors"
    )


class StreamEnd(BaseModel):
    """The last message of a stream."""

    model_config = ConfigDict(extra="forbid")
    end: Literal[True]


UPLOADED: dict[str, Any] = {
    "type": "string",
    "format": "binary",
    "description": "one recording: WAV, FLAC, Ogg (Vorbis, Opus), MP3, AIFF",
}
# FastAPI would read a declared upload before the limits could be looked at, so the body is declared by hand.
UPLOAD_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "additionalProperties": False,
                "properties": {
                    "file": UPLOADED,
                },
            }
        }
    },
}

PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The form is malformed."},
    403: {"model": Problem, "description": "A page of another site sends it."},
    408: {"model": Problem, "description": "The upload took too long."},
    413: {"model": Problem, "description": "Too many bytes, or too many seconds of audio."},
    415: {"model": Problem, "description": "The body is no multipart form."},
    421: {"model": Problem, "description": "It is for a host that the server is not known by."},
    422: {"model": Problem, "description": "The file is not audio that can be used, or a field or option is wrong."},
    500: {"model": Problem, "description": "The server failed."},
    507: {"model": Problem, "description": "The server has no space left for uploads."},
    503: {
        "model": Problem,
        "description": "Too many requests wait, or the server is stopping.",
        "headers": {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds to wait before trying"}},
    },
}
