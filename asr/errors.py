"""The exceptions that are meant for the person at the keyboard."""

import reprlib


class InputError(ValueError):
    """Something the user gave does not hold.

    The message is complete in itself: what must hold, what was given, what to do. Commands print it as one line
    and exit with status 1; any other exception is a fault of ours and keeps its traceback.
    """


def shown(value: object) -> str:
    """What was given, as Python writes it, for an error's message; its middle is left out if it is long."""
    short = reprlib.Repr()
    short.maxstring, short.maxother, short.maxlevel = 80, 80, 2
    return short.repr(value)


class AudioError(InputError):
    """One file, or one stretch of it, that cannot be used; the message is one line and names the file."""


class TruncatedError(AudioError):
    """A file of which a part is missing, or damaged."""


class StoreError(Exception):
    """An object store, or what it holds, failed: the message is one line and names the object and the cause.

    It is no AudioError, which would skip an utterance because of the state of a network, and no InputError, which
    would count as the fault of one file; it ends a run. Commands print it as one line and exit with status 1.
    """

    def __init__(self, message: str) -> None:
        # torch raises an exception of a loading process again with the traceback as its message: the last line is ours
        super().__init__(message.rstrip().rpartition("StoreError: ")[2])


class UnreachableStoreError(StoreError):
    """A store gave no answer, or refused: it may answer later, so a run that ends with it can be resumed."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception says that memory was not enough, on whatever device."""
    texts = ("can't allocate memory", "out of memory", "ALLOC_FAILED", "std::bad_alloc")  # torch's, a RuntimeError
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
    )


def how_to_install(extra: str) -> str:
    """How the packages of an extra of pyproject.toml are installed, as the end of an error's message."""
    return f"In a clone of asr: pip install -e '.[{extra}]'"


def one_line(error: object) -> str:
    """Return an error's message, or any text of another library, on one line and of at most 300 characters."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:300] + " …"
