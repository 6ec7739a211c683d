"""A reference and two hypotheses, aligned word by word in plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.cells import cell_len, set_cell_size

from asr.base.text.printable import printable
from asr.base.text.table import WIDTH
from asr.base.text.word_errors import Edit, align_words

LABELS = ("ref", "  A", "  B")
LEGEND = "*word*: substituted; +word+: inserted; ---: deleted."


def side_by_side(reference: str, a: str, b: str) -> list[str]:
    """Return wrapped lines with a reference and two hypotheses below it; errors are marked."""
    lines: list[str] = []
    row = list(LABELS)
    for column in _columns(_slots(align_words(reference, a)), _slots(align_words(reference, b))):
        cells = [printable(cell) for cell in column]
        wide = max(map(cell_len, cells))
        if cell_len(row[0]) + 1 + wide > WIDTH and row != list(LABELS):
            lines += [part.rstrip() for part in row]
            row = list(LABELS)
        row = [f"{part} {set_cell_size(cell, wide)}" for part, cell in zip(row, cells, strict=True)]
    return lines + [part.rstrip() for part in row]


def _columns(a: Sequence[list[str]], b: Sequence[list[str]]) -> Iterator[tuple[str, str, str]]:
    """Yield columns: a word of the reference (empty for an insertion) and the words of the hypotheses A and B.

    The words inserted before a word of the reference come before its column.
    """
    for slot_a, slot_b in zip(a, b, strict=True):
        word, mark_a, *extra_a = slot_a
        _, mark_b, *extra_b = slot_b
        for more_a, more_b in zip_longest(extra_a, extra_b, fillvalue=""):
            yield "", more_a, more_b
        yield word, mark_a, mark_b


def _slots(edits: Sequence[Edit]) -> list[list[str]]:
    """Return a list for each word of the reference, and a last list for the insertions after all of these words.

    Each list contains the word of the reference, the hypothesis's word (with a mark if it is an error), and the
    insertions before these words. In the last list, both words are empty.
    """
    slots: list[list[str]] = []
    inserted: list[str] = []
    for edit in edits:
        if edit.reference is None:
            inserted.append(f"+{edit.hypothesis}+")
            continue
        mark = "---" if edit.hypothesis is None else edit.hypothesis
        slots.append([edit.reference, f"*{mark}*" if edit.kind == "substitution" else mark, *inserted])
        inserted = []
    return [*slots, ["", "", *inserted]]
