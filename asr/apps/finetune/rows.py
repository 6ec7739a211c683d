"""Rows of tables in text files, and the first line of a file, by which formats are recognised."""

import csv
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asr.apps.finetune.entry import SourceReport
from asr.core.data.manifest import named_lines, parse_object
from asr.errors import InputError

FIRST_BYTES = 1 << 20  # number of bytes in which the first line of a file must end to be seen completely
DELIMITERS = ",;\t|"
TABLE_SUFFIXES = (".csv", ".tsv")


def first_line(path: Path) -> str:
    """Return the first non-blank line of a text file, also of a .gz; "" if there is none, or the file is unreadable."""
    if not path.is_file():  # opening a pipe would block
        return ""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(FIRST_BYTES)
    except (OSError, EOFError, zlib.error):
        return ""
    lines = content.decode("utf-8-sig", "surrogateescape").splitlines()
    return "" if b"\0" in content else next((line for line in lines if line.strip()), "")


def first_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in the first line of a file; {} if there is none."""
    line = first_line(path)
    try:
        return parse_object(line, str(path)) if line.startswith("{") else {}
    except InputError:
        return {}


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
