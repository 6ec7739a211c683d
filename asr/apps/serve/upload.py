"""Uploads: from a request's body to an utterance, within limits on bytes, upload time and seconds of audio.

An uploaded recording is stored in a temporary file without a name, opened as /dev/fd/N. The system removes the file
when its last descriptor is closed, even if the server is killed. The file name that the client gives appears only in
the answer.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.message import Message as Headers
from tempfile import SpooledTemporaryFile
from typing import Any, Generic, NamedTuple, TypeVar, cast

from anyio import CapacityLimiter, to_thread
from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import Message

from asr.apps.serve.problems import INVALID, UnusableError, shown_text
from asr.base.system.files import NO_ROOM
from asr.base.text.printable import printable
from asr.core.data.manifest import Utterance
from asr.core.data.recordings import whole_file
from asr.errors import AudioError, InputError

FORM = "multipart/form-data"
FIELD = "file"
MAX_FILES = 2  # maximum files of a form, which needs only one; up to a megabyte of each file is in memory
MAX_FIELDS = 1_032  # maximum fields of a form, not counting files: a thousand hotwords and some others
MAX_FIELD_BYTES = 1 << 14
NUM_EXAMINED = 2  # files examined at a time, because MP3 and Ogg files are read into memory
FILE_MUST = f"the form must hold one recording, in the field `{FIELD}`"

_number = itertools.count()

OptionsT = TypeVar("OptionsT")
Fields = Sequence[tuple[str, str | UploadFile]]  # fields of a form, besides the recording


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request.

    Args:
        max_bytes: maximum bytes of the body.
        max_seconds: maximum seconds of audio.
        upload_seconds: maximum time to receive the body.
    """

    max_bytes: int
    max_seconds: float
    upload_seconds: float


class Upload(NamedTuple, Generic[OptionsT]):
    """A received recording: the client's file name, the utterance, and the options of the form."""

    name: str
    utterance: Utterance
    options: OptionsT


class Uploads:
    """Receives recordings, up to a maximum number at a time.

    Args:
        limits: limits of each upload.
        most: maximum number of uploads at a time.
        on_change: called with 1 when an upload begins, with -1 when it ends or fails.
    """

    def __init__(self, limits: Limits, most: int, on_change: Callable[[int], object]) -> None:
        self.limits = limits
        self._most = most
        self._on_change = on_change
        self._coming = 0
        self._examiners = CapacityLimiter(NUM_EXAMINED)

    @property
    def full(self) -> bool:
        """Whether the maximum number of uploads is being received."""
        return self._coming >= self._most

    @asynccontextmanager
    async def receive(self, request: Request, read: Callable[[Fields], OptionsT]) -> AsyncIterator[Upload[OptionsT]]:
        """Receive a recording; its file exists until the context ends.

        Args:
            request: the request, whose body has not been read.
            read: returns the options from the form's other fields, or raises UnusableError.

        Raises:
            UnusableError: the form, the file, or the size of the body is not accepted.
            ClientDisconnect: the client has disconnected.
        """
        with ExitStack() as coming:
            self._count(1)
            coming.callback(self._count, -1)
            with _enough_space():
                form = await _form(request, self.limits)
            try:
                file, fields = _file_and_fields(form)
                options = read(fields)
                utterance = await self._examined(file)
                coming.close()
                yield Upload(file.filename or "", utterance, options)
            finally:
                with _enough_space():  # closing writes what is still in the buffer
                    await form.close()

    def _count(self, change: int) -> None:
        self._coming += change
        self._on_change(change)

    async def _examined(self, file: UploadFile) -> Utterance:
        spooled = cast("SpooledTemporaryFile[bytes]", file.file)
        with _enough_space():
            path = await to_thread.run_sync(_path, spooled)
        try:
            return await to_thread.run_sync(_examine, path, self.limits.max_seconds, limiter=self._examiners)
        except AudioError as error:
            raise unusable(error, path) from None


def unusable(error: InputError, path: str) -> UnusableError:
    """Return the refusal of an unusable recording, without the name of its temporary file."""
    return UnusableError(422, printable(str(error).replace(path, FIELD)), param=FIELD)


@contextmanager
def _enough_space() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        line = "the server has no space left for uploads. Send a smaller file, or try again later."
        raise UnusableError(507, line) from None


class _Parser(MultiPartParser):
    """Starlette's parser, which also reads file names as RFC 8187 encodes them, and refuses recordings without a name.

    Older HTTP clients send `filename*=utf-8''K%C3%B6ln.flac` instead of `filename="Köln.flac"`.
    """

    def on_headers_finished(self) -> None:
        """Decide by its headers whether a part is a file or a field."""
        part = self._current_part
        disposition = part.content_disposition or b""
        headers = Headers()
        headers["Content-Disposition"] = disposition.decode("latin-1")
        encoded = None if b"filename" in parse_options_header(disposition)[1] else headers.get_filename()
        if encoded is not None:
            part.content_disposition = disposition + b'; filename=""'
        super().on_headers_finished()
        if part.file is not None and encoded is not None:
            part.file.filename = encoded
        if part.file is None and part.field_name == FIELD:
            line = f"{FILE_MUST}; the field contains text, because it has no file name. With curl: -F {FIELD}=@NAME."
            raise UnusableError(422, line, param=FIELD)


async def _form(request: Request, limits: Limits) -> FormData:
    kind, _, rest = request.headers.get("content-type", "").partition(";")
    if kind.strip().lower() != FORM:
        got = f"got {shown_text(kind)}" if kind else "it has no content type"
        raise UnusableError(415, f"the body must be {FORM} with a recording in the field `{FIELD}`; {got}.")
    if "boundary=" not in rest.lower():
        raise UnusableError(400, f"{FORM} must name its boundary; the content type has none.")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.max_bytes:
        raise _too_large(limits)
    counted = Request(request.scope, _counting(request.receive, limits))
    try:
        async with asyncio.timeout(limits.upload_seconds):
            async with aclosing(counted.stream()) as stream:
                bounds = {"max_files": MAX_FILES, "max_fields": MAX_FIELDS, "max_part_size": MAX_FIELD_BYTES}
                return await _Parser(request.headers, stream, **bounds).parse()
    except TimeoutError:
        must = f"the upload must be complete within {limits.upload_seconds:g} seconds"
        raise UnusableError(408, f"{must}; it was not. Send a smaller file, such as FLAC.") from None
    except UnusableError:
        raise
    except MultiPartException as error:
        raise UnusableError(400, f"the body must be well-formed {FORM}; {_lower(error.message)}.") from None
    except (ValueError, AssertionError) as error:  # errors of the parser without a useful message
        raise UnusableError(400, f"the body must be well-formed {FORM}; it is not.") from error


def _too_large(limits: Limits) -> UnusableError:
    line = f"the body must be at most {limits.max_bytes / 1e6:g} megabytes; it is larger."
    return UnusableError(413, line, param=FIELD)


def _counting(receive: Callable[[], Awaitable[Message]], limits: Limits) -> Callable[[], Awaitable[Message]]:
    """Wrap `receive` so that a body is refused as soon as it is too large; its declared length is not trusted."""
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limits.max_bytes:
            raise _too_large(limits)
        return message

    return counted


def _file_and_fields(form: FormData) -> tuple[UploadFile, Fields]:
    """Return the recording and the other fields of a form."""
    items = form.multi_items()
    files = [value for name, value in items if name == FIELD]
    fields = [(name, value) for name, value in items if name != FIELD]
    if not files:
        got = f"got {_names(fields)}" if fields else "it is empty"
        raise UnusableError(422, f"{FILE_MUST}; {got}.", param=FIELD)
    if len(files) > 1:
        line = f"{FILE_MUST}; got {len(files)} of them. Send each in a separate request."
        raise UnusableError(422, line, param=FIELD)
    return cast(UploadFile, files[0]), fields


def by_name(fields: Fields, lists: Container[str]) -> dict[str, str | list[str]]:
    """Collect the values of each field; only those in `lists` may occur several times.

    Raises:
        UnusableError: a field is a file, or is repeated.
    """
    values: dict[str, Any] = {}
    for name, value in fields:
        if not isinstance(value, str):
            raise UnusableError(422, f"{shown_text(name)} must be text; got a file.", param=name, code=INVALID)
        if name in lists:
            values.setdefault(name, []).append(value)
        elif name in values:
            line = f"{shown_text(name)} must be given once; it is repeated."
            raise UnusableError(422, line, param=name, code=INVALID)
        else:
            values[name] = value
    return values


def _names(fields: Fields) -> str:
    return ", ".join(shown_text(name) for name, _ in fields)


def _path(spooled: "SpooledTemporaryFile[bytes]") -> str:
    """Write a file to disk, and return its path, which is valid while its descriptor is open."""
    spooled.rollover()
    spooled.flush()
    return f"/dev/fd/{spooled.fileno()}"


def _examine(path: str, max_seconds: float) -> Utterance:
    """Return the utterance of a file; if its headers have no length, little more than `max_seconds` is decoded."""
    utterance = whole_file(path, f"upload {next(_number)}", max_seconds)
    if utterance.duration > max_seconds:
        must = f"the recording must be at most {max_seconds:g} seconds long"
        line = f"{must}; it is at least {utterance.duration:.1f}. Cut it, or use python -m asr.transcribe."
        raise UnusableError(413, line, param=FIELD)
    return utterance


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].rstrip(".")
