"""From a request's body to an utterance, within limits: bytes, seconds to send them, seconds of audio.

What is uploaded lies in a temporary file that has no name (the system removes it with its last descriptor, even if
the server is killed); it is opened under /dev/fd. The name that the client gives is only handed back in the answer.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Generic, NamedTuple, TypeVar, cast

from anyio import CapacityLimiter, to_thread
from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import Message

from asr.audio.load import declared_seconds, stream_waveform
from asr.data.manifest import Utterance
from asr.data.recordings import whole_file
from asr.errors import AudioError, InputError
from asr.server.problems import UnusableError
from asr.system.files import NO_ROOM
from asr.text.printable import printable

FORM = "multipart/form-data"
FIELD = "file"
MAX_FILES = 2  # of a form; it needs one. Up to a megabyte of each is held in memory
MAX_FIELDS = 32  # of a form, without a file
MAX_FIELD_BYTES = 1 << 14
NUM_EXAMINED = 2  # files whose headers are checked at a time: MP3 and Ogg files are held in memory for that
FILE_MUST = f"the form must hold one recording, in the field `{FIELD}`"
SHOWN = 40  # characters of a client's own words in an answer
EXAMINED_RATE = 16000  # Hz, for counting seconds; any would do

_number = itertools.count()

OptionsT = TypeVar("OptionsT")
Fields = Sequence[tuple[str, str | UploadFile]]  # of a form, beside the recording


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask for.

    Args:
        max_bytes: of its body.
        max_seconds: of audio.
        upload_seconds: that the body may take to come.
    """

    max_bytes: int
    max_seconds: float
    upload_seconds: float


class Upload(NamedTuple, Generic[OptionsT]):
    """A recording that came in: the name it was sent under, the utterance that it is, what the form asks for."""

    name: str
    utterance: Utterance
    options: OptionsT


class Uploads:
    """Takes recordings in, a bounded number at a time.

    Args:
        limits: of each.
        most: how many may be on their way in at a time.
        on_change: called with 1 when one begins, with -1 when it is in, or has failed.
    """

    def __init__(self, limits: Limits, most: int, on_change: Callable[[int], object]) -> None:
        self.limits = limits
        self._most = most
        self._on_change = on_change
        self._coming = 0
        self._examiners = CapacityLimiter(NUM_EXAMINED)

    @property
    def full(self) -> bool:
        """Whether as many uploads are on their way as may be."""
        return self._coming >= self._most

    @asynccontextmanager
    async def receive(self, request: Request, read: Callable[[Fields], OptionsT]) -> AsyncIterator[Upload[OptionsT]]:
        """Receive a recording; its file is there until the context is left.

        Args:
            request: whose body has not been read.
            read: makes options of the form's other fields, or raises UnusableError.

        Raises:
            UnusableError: the form, the file, or its size is wrong.
            ClientDisconnect: nobody is there to be answered.
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
    """Say what is wrong with a recording, without the name of its temporary file."""
    return UnusableError(422, printable(str(error).replace(path, FIELD)), param=FIELD)


@contextmanager
def _enough_space() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise UnusableError(507, "the server has no space left for uploads. Try a smaller file, or later.") from None


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
            return await counted.form(max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES)
    except TimeoutError:
        must = f"the upload must be over within {limits.upload_seconds:g} seconds"
        raise UnusableError(408, f"{must}; it was not. Send a smaller file, FLAC say.") from None
    except UnusableError:
        raise
    except StarletteHTTPException as error:  # which FastAPI's is a kind of
        raise UnusableError(400, f"the body must be well-formed {FORM}; {_lower(error.detail)}.") from None
    except (ValueError, AssertionError) as error:  # what the parser stumbles over without a word of its own
        raise UnusableError(400, f"the body must be well-formed {FORM}; it is not.") from error


def _too_large(limits: Limits) -> UnusableError:
    line = f"the body must be at most {limits.max_bytes / 1e6:g} megabytes; it is larger."
    return UnusableError(413, line, param=FIELD)


def _counting(receive: Callable[[], Awaitable[Message]], limits: Limits) -> Callable[[], Awaitable[Message]]:
    """Receive a body, and refuse it as soon as it is too large, whatever length it declared."""
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
    """Take a form apart: the recording, and the fields beside it."""
    items = form.multi_items()
    files = [value for name, value in items if name == FIELD]
    fields = [(name, value) for name, value in items if name != FIELD]
    if not files:
        got = f"got {_names(fields)}" if fields else "it is empty"
        raise UnusableError(422, f"{FILE_MUST}; {got}.", param=FIELD)
    if len(files) > 1:
        line = f"{FILE_MUST}; got {len(files)} of them. Send each in a request of its own."
        raise UnusableError(422, line, param=FIELD)
    [file] = files
    if not isinstance(file, UploadFile):
        line = f"{FILE_MUST}; that field holds text, as it has no file name. With curl: -F {FIELD}=@NAME."
        raise UnusableError(422, line, param=FIELD)
    return file, fields


def no_fields(fields: Fields) -> None:
    """Check that a form holds nothing beside its recording."""
    if fields:
        raise UnusableError(422, f"{FILE_MUST}, and nothing else; got {_names(fields)} beside it.")


def _names(fields: Fields) -> str:
    return ", ".join(shown_text(name) for name, _ in fields)


def _path(spooled: "SpooledTemporaryFile[bytes]") -> str:
    """Have a file on disk, and say under which name it can be opened while its descriptor is open."""
    spooled.rollover()
    spooled.flush()
    return f"/dev/fd/{spooled.fileno()}"


def _examine(path: str, max_seconds: float) -> Utterance:
    """Make the file an utterance; if its header does not say how long it is, decode no more than `max_seconds`."""
    seconds = declared_seconds(path)
    if seconds is None:
        samples = 0
        for block in stream_waveform(path, EXAMINED_RATE):
            samples += len(block)
            _check_seconds(samples / EXAMINED_RATE, max_seconds, at_least="at least ")
    else:
        _check_seconds(seconds, max_seconds)
    return whole_file(path, f"upload {next(_number)}")


def _check_seconds(seconds: float, max_seconds: float, at_least: str = "") -> None:
    if seconds > max_seconds:
        must = f"the recording must be at most {max_seconds:g} seconds long"
        line = f"{must}; it is {at_least}{seconds:.1f}. Cut it, or use python -m asr.transcribe."
        raise UnusableError(413, line, param=FIELD)


def shown_text(text: str) -> str:
    """Quote a client's text, printable and shortened."""
    return repr(printable(text if len(text) <= SHOWN else text[:SHOWN] + "…"))


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].rstrip(".")
