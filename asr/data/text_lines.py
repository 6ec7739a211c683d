"""The lines of a text file, or of the utterances of a manifest: what a language model is made of."""

import gzip
import sys
import zlib
from collections.abc import Callable, Iterator

from asr.data.manifest import read_manifest
from asr.errors import InputError
from asr.system.files import bounded_lines

LONGEST_LINE = 1 << 28  # bytes: texts of 100 MB in one line are about, text8 for one
MANIFEST = ".jsonl"
_LINES = 1000  # between two looks at the progress


def text_lines(path: str, advance: Callable[[int], object]) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line of a file, or of each utterance of a manifest.

    Raises:
        InputError: it cannot be read, or is no text.
    """
    if path.endswith(MANIFEST):
        yield from enumerate((utterance.text for utterance in read_manifest(path)), start=1)
        return
    try:
        with open(sys.stdin.fileno() if path == "-" else path, "rb", closefd=path != "-") as raw:
            content = gzip.GzipFile(fileobj=raw) if path.endswith(".gz") else raw
            for number, (where, line) in enumerate(bounded_lines(content.readline, LONGEST_LINE, path), start=1):
                if number % _LINES == 0 and raw.seekable():
                    advance(raw.tell())
                yield number, _decode(line, where)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: a .gz file must be whole; {error}.") from None
    except OSError as error:
        raise InputError(f"{path}: a text must be a file that can be read; {error.strerror}.") from None


def _decode(line: bytes, place: str) -> str:
    if b"\0" in line:
        raise InputError(f"{place}: a text must be of characters; this line holds a NUL.")
    try:
        return line.decode().removeprefix("\ufeff")  # with which some editors mark UTF-8
    except UnicodeDecodeError as error:
        given = f"0x{line[error.start]:02x} ({error.reason})"
        raise InputError(f"{place}: a text must be UTF-8; got byte {given}.") from None
