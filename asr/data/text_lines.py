"""Lines of text: of files, compressed or not, and of manifests."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from asr.data.manifest import read_manifest
from asr.errors import InputError
from asr.system.files import bounded_lines

LONGEST_LINE = 1 << 20  # bytes: a sentence has hundreds


def text_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield place and text of each line of a file, or of each utterance of a manifest (.jsonl).

    Raises:
        InputError: it cannot be read, or is no text.
    """
    if path.suffix == ".jsonl":
        for number, utterance in enumerate(read_manifest(path), start=1):
            yield f"{path}:{number}", utterance.text
        return
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for place, line in bounded_lines(file.readline, LONGEST_LINE, str(path)):
                yield place, _decode(line, place)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: a .gz file must be whole; {error}.") from None
    except OSError as error:
        raise InputError(f"{path}: a text must be a file that can be read; {error.strerror}.") from None


def _decode(line: bytes, place: str) -> str:
    try:
        return line.decode().removeprefix("\ufeff")  # with which some editors mark UTF-8
    except UnicodeDecodeError as error:
        given = f"0x{line[error.start]:02x} ({error.reason})"
        raise InputError(f"{place}: a text must be UTF-8; got byte {given}.") from None
