"""Exceptions whose messages are written for the user, and helpers for these messages."""

import reprlib
from pathlib import Path
from traceback import extract_tb

MAX_MESSAGE = 4_000  # maximum number of characters of an InputError

MEMORY_ERRORS = (  # parts of torch's RuntimeErrors; without memory for its code, oneDNN cannot create a primitive
    *("can't allocate memory", "out of memory", "ALLOC_FAILED", "std::bad_alloc", "unable to mmap"),
    "could not create a primitive",
)


class InputError(ValueError):
    """An input of the user is invalid.

    The message is self-contained: it states the condition, the given value and the remedy. Commands print it as one
    line and exit with status 1; any other exception is a bug in asr and is shown with its traceback. The middle of a
    message longer than `MAX_MESSAGE` characters is left out, because an untrusted file may have values of any length.
    """

    def __init__(self, message: str = "") -> None:
        half = MAX_MESSAGE // 2
        super().__init__(message if len(message) <= MAX_MESSAGE else f"{message[:half]} ... {message[-half:]}")


def shown(value: object) -> str:
    """Format a value for an error message: its repr, with the middle omitted if it is long."""
    short = reprlib.Repr()
    short.maxstring, short.maxother, short.maxlevel = 80, 80, 2
    return short.repr(value)


class AudioError(InputError):
    """An audio file, or a segment of it, cannot be used; the message is one line and names the file."""


class TruncatedError(AudioError):
    """Part of an audio file is missing or damaged."""


class StoreError(Exception):
    """An object store failed; the message is one line and names the object and the cause.

    The error ends a run. It is not an AudioError, because a network problem must not skip an utterance, and not an
    InputError, because a single file is not the cause. Commands print it as one line and exit with status 1.
    """

    def __init__(self, message: str) -> None:
        # torch re-raises an exception of a data worker with a traceback as its message; our message is its last line.
        super().__init__(message.rstrip().rpartition("StoreError: ")[2])


class UnreachableStoreError(StoreError):
    """A store did not answer or refused a request; it may answer later, so a run ended by this error can be resumed."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception reports that the memory of the CPU or of another device was exhausted."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in MEMORY_ERRORS)
    )


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra of pyproject.toml, as the end of an error message."""
    return f"In a clone of asr: pip install -e '.[{extra}]'"


def one_line(error: object) -> str:
    """Return an error message, or other text from a library, on one line of at most 300 characters."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:300] + " …"


def place_of(error: BaseException, folder: Path) -> str:
    """Return " (file:line)" of the code in `folder` that caused an error; "" if none of it did."""
    frames = [frame for frame in extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(folder)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def reason_of(error: object) -> str:
    """Return such a message without its final stop, as the last clause of a sentence."""
    return one_line(error).rstrip(".")
