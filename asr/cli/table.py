"""Format results as text in columns."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

MAX_NAME_WIDTH = 20


def lay_out(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as lines; the first column is left-aligned, and the other columns, of numbers, are right-aligned."""
    first, *others = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join([set_cell_size(row[0], first), *map(str.rjust, row[1:], others)]) for row in rows]


def short_name(name: str, width: int = MAX_NAME_WIDTH) -> str:
    """Shorten a wide name in the middle, because names usually differ at the beginning or at the end."""
    if cell_len(name) <= width:
        return name
    end = name
    while cell_len(end) > (width - 1) // 2:
        end = end[1:]
    return set_cell_size(name, width - 1 - cell_len(end)).rstrip() + "…" + end
