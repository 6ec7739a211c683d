"""Validate ARPA files before KenLM reads them, because KenLM trusts the counts in the header to allocate memory.

A file is read once, in blocks of whole lines, and each block is matched with one pattern: 0.2 s per million n-grams.
"""

import io
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

from asr.errors import InputError, shown

ARPA_HEAD = b"\\data\\"
UNKNOWN = "<unk>"
MAX_ORDER = 6  # maximum order of this build of KenLM
TOO_LONG = f"KenLM reads orders up to {MAX_ORDER}. Build the model with a lower order, such as lmplz -o {MAX_ORDER}"
MAX_WORD_BYTES = 1000  # the longest words of real texts are URLs, which are far shorter
MAX_VOCABULARY = 10_000_000  # words; a beam search stores all their prefixes in several GB of memory
MAX_LINE_BYTES = (MAX_ORDER + 1) * MAX_WORD_BYTES  # room for the words of an n-gram and two numbers
HEAD_BYTES = 1 << 20  # enough for the comments at the beginning
_PIECE = 1 << 20  # bytes read at once

_COUNT = re.compile(rb"ngram[ \t]+(\d{1,2})[ \t]*=[ \t]*(\d{1,15})[ \t]*\r?\n")
_WORDS = re.compile(rb"^\S+[ \t]+(\S+)", re.MULTILINE)
# Possessive quantifiers (a second +) never backtrack, so matching takes linear time on any file.
_NUMBER = rb"\d{1,9}+(?:\.\d{0,30}+)?+(?:[eE](?:-\d\d?+|\+?[01]?\d))?+"  # finite, also as a 32-bit number in KenLM
_LOG_PROB = rb"(?:-" + _NUMBER + rb"|0(?:\.0{0,30}+)?+)"
_NEVER = rb"|-inf(?=[ \t]++<s>[ \t\r\n])"  # <s> is never predicted, so its probability may be 0
_WORD = rb"[ \t]++\S{1,%d}+" % MAX_WORD_BYTES


def is_arpa(head: bytes) -> bool:
    r"""Whether a file with this beginning is ARPA: \data\ follows blank lines and comments, as KenLM requires."""
    return _first_line(io.BytesIO(head).readline).strip() == ARPA_HEAD


def read_words(file: BinaryIO, *, only_words: bool = False) -> list[str]:
    r"""Check a file against its header and list the different words of its 1-grams, including <unk>, <s> and </s>.

    As in KenLM, <UNK> is <unk>; a file without either has <unk> with a log10 probability of -100.

    After the header the file must hold the stated number of n-grams of each order, one per line: a log10 probability,
    the words, and an optional back-off. The line \end\ must follow.

    Args:
        file: binary file, positioned at its beginning.
        only_words: whether to stop after the 1-grams.

    Raises:
        ValueError: the file is malformed; the message names the line and its fault.
    """
    lines = _Lines(file)
    _check_heading(lines, _first_line(lines.next), ARPA_HEAD)
    counts = _counts(lines)
    words: dict[str, None] = {}
    for order, count in enumerate(counts, start=1):
        _check_heading(lines, _not_blank(lines), b"\\%d-grams:" % order)
        number = 0
        for piece in lines.take(_n_grams(order)):
            number += piece.count(b"\n")
            if number > count:
                break
            if order == 1:
                words.update(dict.fromkeys(b"\n".join(_WORDS.findall(piece)).decode().split("\n")))
        if number != count:
            raise _miscounted(lines, order, count, number)
        if only_words:
            break
    else:
        _check_heading(lines, _not_blank(lines), b"\\end\\")
        if _not_blank(lines):
            raise ValueError(f"line {lines.number} must be empty, because it follows \\end\\")
    return list(dict.fromkeys([*(UNKNOWN if word == UNKNOWN.upper() else word for word in words), UNKNOWN]))


def check_lengths(text: str) -> str:
    """Return a text if each word has at most MAX_WORD_BYTES bytes.

    Raises:
        InputError: a word is longer; the message names the word.
    """
    for word in text.split():
        if len(word.encode("utf-8", "surrogatepass")) > MAX_WORD_BYTES:
            raise InputError(f"a word must have at most {MAX_WORD_BYTES:,} bytes; got {shown(word)}.")
    return text


class _Lines:
    """Reads a file line by line, or in blocks of lines that match a pattern.

    Args:
        file: binary file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.number = 0  # number of the last line that was read
        self._file = file
        self._piece = b""  # ends with a newline, unless a line exceeds MAX_LINE_BYTES
        self._place = 0

    def next(self) -> bytes:
        """Return the next line; b"" at the end of the file."""
        self._fill()
        end = self._piece.find(b"\n", self._place) + 1 or len(self._piece)
        line, self._place = self._piece[self._place : end], end
        self.number += bool(line)
        return line

    def take(self, pattern: re.Pattern[bytes]) -> Iterator[bytes]:
        """Yield blocks of lines up to the first line that does not match."""
        while True:
            self._fill()
            match = pattern.match(self._piece, self._place)
            taken = match[0] if match else b""
            if not taken:
                return
            self._place += len(taken)
            self.number += taken.count(b"\n")
            yield taken

    def _fill(self) -> None:
        if self._place == len(self._piece):
            self._piece, self._place = self._file.read(_PIECE), 0
            if not self._piece.endswith(b"\n"):
                self._piece += self._file.readline(MAX_LINE_BYTES)
            if b"\0" in self._piece:
                raise ValueError(f"after line {self.number} it must be text; there is a null byte")


def _not_blank(lines: _Lines) -> bytes:
    return next((line for line in iter(lines.next, b"") if line.strip()), b"")


def _first_line(next_line: Callable[[], bytes]) -> bytes:
    """Return the first line that is neither blank nor a comment; b"" if there is none."""
    return next((line for line in iter(next_line, b"") if line.strip() and not line.startswith(b"#")), b"")


def _counts(lines: _Lines) -> list[int]:
    r"""Read the counts between \data\ and the first blank line."""
    counts: list[int] = []
    for line in iter(lines.next, b""):
        if not line.strip():
            break
        match = _COUNT.fullmatch(line)
        order = len(counts) + 1
        if match and int(match[1]) == order > MAX_ORDER:
            raise ValueError(f"line {lines.number} counts {order}-grams; {TOO_LONG}")
        if not match or int(match[1]) != order or order > MAX_ORDER:
            must = f"line {lines.number} must count n-grams, as in ngram {order}=12, in ascending order to {MAX_ORDER}"
            raise ValueError(f"{must}; it is {shown(line)}")
        counts.append(int(match[2]))
    if not counts:
        raise ValueError("its header must count its n-grams, as in ngram 1=12; it does not")
    if counts[0] > MAX_VOCABULARY:
        raise ValueError(f"it must have at most {MAX_VOCABULARY:,} 1-grams; it counts {counts[0]:,}")
    return counts


def _n_grams(order: int) -> re.Pattern[bytes]:
    """Return a pattern of consecutive lines that are n-grams of an order."""
    log_prob = rb"(?:" + _LOG_PROB + (_NEVER if order == 1 else b"") + rb")"
    return re.compile(rb"(?:" + log_prob + _WORD * order + rb"(?:[ \t]++-?" + _NUMBER + rb")?+\r?\n)*+")


def _check_heading(lines: _Lines, line: bytes, heading: bytes) -> None:
    if line.strip() != heading:
        given = f"it is {shown(line)}" if line else "the file ends there"
        raise ValueError(f"line {lines.number} must be {heading.decode()}; {given}")


def _miscounted(lines: _Lines, order: int, count: int, number: int) -> ValueError:
    """Return the error for a wrong number of n-grams: the next line is malformed, or the header's count is wrong."""
    line = lines.next()
    if number > count or not line.strip() or line.startswith(b"\\"):
        there = f"more than {count:,}" if number > count else f"{number:,}"
        return ValueError(f"its header counts {count:,} {order}-grams, and there are {there}")
    form = f"log10 probability, words of at most {MAX_WORD_BYTES:,} bytes, back-off if any; -99 instead of -inf"
    return ValueError(f"line {lines.number} must be a {order}-gram ({form}); it is {shown(line)}")
