"""Hotwords of requests and streams: fields of forms, keys of messages, and the lists that the server knows by name."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any

from anyio import to_thread
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from asr.apps.serve.problems import INVALID, UnusableError, shown_text
from asr.apps.serve.upload import FILE_MUST, Fields, by_name
from asr.core.recognition.recognizer import NUM_CACHED, Recognizer
from asr.interfaces import NO_BIASING, Biasing

MAX_PHRASES = 1_000  # of a request
MAX_BYTES = 1 << 14  # of the phrases of a request
UNUSED = "x-hotwords-unused"  # header with the number of phrases that the model cannot spell


class HotwordRequest(BaseModel):
    """Hotwords of a request, or of a stream from a message on."""

    model_config = ConfigDict(extra="forbid")
    hotwords: list[str] = Field(
        default=[], description="names and terms to recognise more easily, one per line or field"
    )
    keywords: Annotated[list[str], Field(alias="keywords[]")] = Field(default=[], description="same as hotwords")
    hotword_score: Annotated[float | None, Field(ge=0, le=1_000)] = Field(
        default=None, description="bonus for each word of these hotwords, a natural logarithm (default: the server's)"
    )
    hotwords_list: str | None = Field(default=None, description="name of a list of the server (--hotwords-list)")

    @property
    def phrases(self) -> tuple[str, ...]:
        """The phrases, one per line of each field."""
        lines = (line for text in (*self.hotwords, *self.keywords) for line in text.splitlines())
        return tuple(line for line in lines if line.strip())


NAMES = [field.alias or name for name, field in HotwordRequest.model_fields.items()]
LISTS = {"hotwords", "keywords[]"}
NO_LISTS: Mapping[str, Biasing] = MappingProxyType({})


def read_hotwords(values: Mapping[str, Any]) -> HotwordRequest:
    """Read the fields that belong to hotwords; other fields are ignored.

    Raises:
        UnusableError: a value is invalid.
    """
    own = {name: value for name, value in values.items() if name in NAMES}
    try:
        return HotwordRequest.model_validate(own)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, must = str(first["loc"][0]), first["msg"].removeprefix("Input should be ")
        raise UnusableError(422, f"{name} must be {must}; got {shown_text(first['input'])}.", param=name) from None


def only_hotwords(fields: Fields) -> HotwordRequest:
    """Read a form that has only hotwords besides the recording.

    Raises:
        UnusableError: there is another field, or a value is invalid.
    """
    others = [shown_text(name) for name, _ in fields if name not in NAMES]
    if others:
        line = f"{FILE_MUST}, and besides it only {', '.join(NAMES)}; got {', '.join(others)}."
        raise UnusableError(422, line)
    return read_hotwords(by_name(fields, LISTS))


class ServedHotwords:
    """Compiles the hotwords of requests, outside the threads that recognise and answer.

    Args:
        recognizer: its decoder compiles phrases; the last results are cached.
        lists: compiled lists, by name.
        in_prompt: whether OpenAI's field `prompt` contains hotwords.
    """

    def __init__(
        self, recognizer: Recognizer, lists: Mapping[str, Biasing] = NO_LISTS, in_prompt: bool = False
    ) -> None:
        self.lists = lists
        self.in_prompt = in_prompt
        compile_hotwords = recognizer.decode.compile_hotwords
        # Recognizer.biasing would log phrases of clients.
        self._compiled = None if compile_hotwords is None else lru_cache(NUM_CACHED)(compile_hotwords)

    def properties(self) -> dict[str, Any]:
        """Describe the fields of a form for OpenAPI."""
        if self._compiled is None:
            return {}
        properties: dict[str, Any] = HotwordRequest.model_json_schema(by_alias=True)["properties"]
        if self.lists:
            properties["hotwords_list"] = {"type": "string", "enum": [*self.lists]}
        else:
            del properties["hotwords_list"]
        return properties

    async def biasing(self, request: HotwordRequest) -> Biasing:
        """Return the compiled phrases of a request, with those of the list that it names.

        Raises:
            UnusableError: the request has too many phrases, names an unknown list, or the decoder prefers no hotwords.
        """
        phrases = request.phrases
        size = sum(len(phrase.encode()) for phrase in phrases)
        if len(phrases) > MAX_PHRASES or size > MAX_BYTES:
            must = f"a request may have {MAX_PHRASES:,} hotwords of {MAX_BYTES:,} bytes together"
            cure = "Start the server with --hotwords-list NAME=FILE and send hotwords_list=NAME."
            raise _unusable(f"{must}; got {len(phrases):,} of {size:,} bytes. {cure}")
        if request.hotword_score is not None and not phrases:
            raise _unusable("hotword_score needs hotwords; got none.", "hotword_score")
        name = request.hotwords_list
        if name is not None and name not in self.lists:
            known = f"one of {', '.join(self.lists)}" if self.lists else "left out, since the server has no list"
            raise _unusable(f"hotwords_list must be {known}; got {shown_text(name)}.", "hotwords_list")
        own = self.lists[name] if name is not None else NO_BIASING
        if not phrases:
            return own
        if self._compiled is None:
            raise _unusable("hotwords need a beam search. Start the server with --beam 4, for example.")
        return joined(own, await to_thread.run_sync(self._compiled, phrases, request.hotword_score))


def joined(first: Biasing, second: Biasing) -> Biasing:
    """Return the hotwords of two lists."""
    return replace(
        first,
        phrases=(*first.phrases, *second.phrases),
        impossible={**first.impossible, **second.impossible},
        lists=(*first.lists, *second.lists),
    )


def headers(biasing: Biasing) -> dict[str, str]:
    """Return the headers of an answer to a request with these hotwords."""
    return {UNUSED: str(len(biasing.impossible))} if biasing.impossible else {}


def phrases_of_prompt(prompt: str) -> Iterable[str]:
    """Return the phrases of OpenAI's field `prompt`, between commas or lines."""
    return [phrase.strip() for line in prompt.splitlines() for phrase in line.split(",") if phrase.strip()]


def _unusable(line: str, param: str = "hotwords") -> UnusableError:
    return UnusableError(422, line, param=param, code=INVALID)
