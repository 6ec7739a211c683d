"""Rows of tables, of JSON and of Parquet, and the beginning of a file, by which formats are recognised."""

import csv
import gzip
import json
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from asr.apps.finetune.entry import SourceReport
from asr.base.system.files import bounded_lines
from asr.core.data.manifest import MAX_LINE_LENGTH, named_lines, parse_object
from asr.errors import InputError, one_line, reason_of, shown

FIRST_BYTES = 1 << 20  # number of bytes in which the first line or object of a file must end to be seen completely
PARQUET_ROWS = 1024  # number of rows without audio that are read at a time
DELIMITERS = ",;\t|"
TABLE_SUFFIXES = (".csv", ".tsv")


def first_line(path: Path) -> str:
    """Return the first non-blank line of a text file, also of a .gz; "" if there is none, or the file is unreadable."""
    return next((line for line in _beginning(path).splitlines() if line.strip()), "")


def _beginning(path: Path) -> str:
    """Return the first characters of a text file, also of a .gz; "" if the file is unreadable or no text."""
    if not path.is_file():  # opening a pipe would block
        return ""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(FIRST_BYTES)
    except (OSError, EOFError, zlib.error):
        return ""
    return "" if b"\0" in content else content.decode("utf-8-sig", "surrogateescape")


def first_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in the first line of a file, or the first object of a list; {} if there is none."""
    line = first_line(path)
    try:
        if is_json_list(path):
            head = _beginning(path).lstrip()[1:].lstrip()
            item, _ = json.JSONDecoder().raw_decode(head)
            return item if isinstance(item, dict) else {}
        return parse_object(line, str(path)) if line.startswith("{") else {}
    except (InputError, ValueError, RecursionError):
        return {}


def is_utf_16(path: Path) -> bool:
    """Return whether a file begins with a byte order mark of UTF-16, which no format reads."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(2) in (BOM_UTF16_LE, BOM_UTF16_BE)


def is_json_list(path: Path) -> bool:
    """Return whether a file has a list instead of JSON lines."""
    return first_line(path).lstrip().startswith("[")


def json_objects(path: Path, kind: str, report: SourceReport) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of JSON lines, or of one JSON list, with their places; others are problems.

    Args:
        path: path of the file, also of a .gz.
        kind: expected kind of file, for errors, such as "a manifest".
        report: for problems.
    """
    if not is_json_list(path):
        for where, line in lines_of(path, kind):
            try:
                yield where, parse_object(line, where)
            except InputError as error:
                report.problems.append(str(error))
        return
    for number, item in enumerate(json_list(path, kind), 1):
        where = f"{path}: object {number}"
        if isinstance(item, dict):
            yield where, item
        else:
            report.add(where, f"must be an object; got {shown(item)}")


def json_list(path: Path, kind: str) -> list[Any]:
    """Read a file that has one JSON list.

    Raises:
        InputError: it is unreadable, or no such file.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            items = orjson.loads(file.read().removeprefix(b"\xef\xbb\xbf"))
    except (OSError, EOFError, zlib.error, orjson.JSONDecodeError) as error:
        reason = getattr(error, "strerror", None) or reason_of(error)
        raise InputError(f"{path}: must be {kind}, a JSON list; {reason}.") from None
    if not isinstance(items, list):
        raise InputError(f"{path}: must be {kind}, a JSON list; got {shown(items)}.")
    return items


def lines_of(path: Path, kind: str) -> Iterator[tuple[str, str]]:
    """Yield `file:line` and text of each non-blank line of a file, as `named_lines`, also of a .gz."""
    if path.suffix != ".gz":
        yield from named_lines(path, kind)
        return
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="surrogateescape") as file:
            for where, line in bounded_lines(file.readline, MAX_LINE_LENGTH, str(path)):
                if line.strip():
                    yield where, line
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: must be a complete and readable gzip file; {reason}.") from None


def parquet_columns(path: Path) -> list[str]:
    """Return the columns of a Parquet file; [] for other files, or without the package."""
    try:
        import pyarrow.parquet

        return list(pyarrow.parquet.read_schema(path).names)
    except (ImportError, OSError, ValueError):  # ValueError: of pyarrow
        return []


def parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a Parquet file without audio, with their places.

    Raises:
        InputError: the file is unreadable.
    """
    import pyarrow.parquet

    number = 0
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(PARQUET_ROWS):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}:{number}", row
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: must be a Parquet file that can be read; {one_line(error)}.") from None


def columns_of(path: Path) -> list[str]:
    """Return the columns that the first line of a table names; [] for other files."""
    line = first_line(path) if path.suffix.lower() in TABLE_SUFFIXES else ""
    try:
        return next(csv.reader([line], delimiter=delimiter_of(path, line)), [])
    except csv.Error:  # such as a field that is too long
        return []


def delimiter_of(path: Path, head: str) -> str:
    """Return the delimiter of a table: a tab in a .tsv, otherwise the most frequent delimiter of the first line."""
    return "\t" if path.suffix.lower() == ".tsv" else max(DELIMITERS, key=head.count)


def table_rows(path: Path, kind: str, report: SourceReport) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a table after its first line, which names the columns, with their places (file:line).

    A row of a CSV file may span several lines; its place is then its last line. Rows with another number of columns
    are problems.

    Args:
        path: path of the table.
        kind: expected kind of file, for errors, such as "a table".
        report: for problems.
    """
    place = str(path)

    def lines() -> Iterator[str]:
        nonlocal place
        for where, line in named_lines(path, kind):
            place = where
            yield line

    delimiter = delimiter_of(path, first_line(path))
    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    try:
        columns = next(reader, [])
        if twice := next((column for column in columns if columns.count(column) > 1), None):
            raise InputError(f"{place}: columns must have unique names; {twice} occurs twice. Rename one of them.")
        for values in reader:
            if len(values) != len(columns):
                report.add(place, f"must have {len(columns)} columns, as the first line; got {len(values)}")
            elif delimiter == "\t" and any("\n" in value for value in values):
                report.add(place, "a row must be one line; a quotation mark that begins a value has no end in its line")
            else:
                yield place, dict(zip(columns, values, strict=True))
    except csv.Error as error:
        raise InputError(f"{place}: must be CSV; {error}.") from None
