"""The lines of a text file, or the texts of a manifest, as input of language models."""

import gzip
import sys
import zlib
from collections.abc import Callable, Iterator

from asr.base.system.files import bounded_lines
from asr.core.data.manifest import read_manifest
from asr.errors import InputError

MAX_LINE_BYTES = 1 << 28  # some corpora, such as text8, are a single line of 100 MB
MANIFEST = ".jsonl"
_LINES = 1000  # number of lines between two calls of `on_progress`


def text_lines(path: str, on_progress: Callable[[int], object]) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line of a file, or of each utterance of a manifest."""
    if path.endswith(MANIFEST):
        yield from enumerate((utterance.text for utterance in read_manifest(path)), start=1)
        return
    try:
        with open(sys.stdin.fileno() if path == "-" else path, "rb", closefd=path != "-") as raw:
            content = gzip.GzipFile(fileobj=raw) if path.endswith(".gz") else raw
            for number, (where, line) in enumerate(bounded_lines(content.readline, MAX_LINE_BYTES, path), start=1):
                if number % _LINES == 0 and raw.seekable():
                    on_progress(raw.tell())
                yield number, _decode(line, where)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: a .gz file must be complete; got: {error}.") from None
    except OSError as error:
        raise InputError(f"{path}: a text must be a readable file; got: {error.strerror}.") from None


def _decode(line: bytes, where: str) -> str:
    if b"\0" in line:
        raise InputError(f"{where}: a text must not contain NUL bytes; this line does.")
    try:
        return line.decode().removeprefix("\ufeff")  # removes a byte order mark
    except UnicodeDecodeError as error:
        given = f"0x{line[error.start]:02x} ({error.reason})"
        raise InputError(f"{where}: a text must be UTF-8; got byte {given}.") from None
