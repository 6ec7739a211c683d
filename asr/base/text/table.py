"""Format results as tables: text in columns, Markdown and LaTeX."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

WIDTH = 100  # columns of a terminal
MAX_NAME_WIDTH = 20
MARKDOWN = str.maketrans({letter: f"\\{letter}" for letter in "\\`*_<|"})
LATEX = str.maketrans(  # special characters in LaTeX's text, also with the font encoding OT1
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "…": r"\dots{}"}
)


def lay_out(rows: Sequence[Sequence[str]], num_left: int = 1) -> list[str]:
    """Format rows as lines; the first `num_left` columns are left-aligned, the others, of numbers, right-aligned."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [*map(set_cell_size, row[:num_left], widths), *map(str.rjust, row[num_left:], widths[num_left:])],
        )
        for row in rows
    ]


def markdown(rows: Sequence[Sequence[str]], num_left: int = 1) -> list[str]:
    """Format rows, of which the first has the titles, as a Markdown table; columns are aligned as in `lay_out`."""
    titles, *others = [f"| {' | '.join(cell.translate(MARKDOWN) for cell in row)} |" for row in rows]
    return [titles, f"|{' --- |' * num_left}{' ---: |' * (len(rows[0]) - num_left)}", *others]


def latex(rows: Sequence[Sequence[str]], num_left: int = 1) -> list[str]:
    """Format rows as a LaTeX table with the rules of the package booktabs; columns are aligned as in `lay_out`."""
    titles, *others = [" & ".join(cell.translate(LATEX) for cell in row) + r" \\" for row in rows]
    begin = rf"\begin{{tabular}}{{{'l' * num_left + 'r' * (len(rows[0]) - num_left)}}}"
    return [begin, r"\toprule", titles, r"\midrule", *others, r"\bottomrule", r"\end{tabular}"]


def short_name(name: str, width: int = MAX_NAME_WIDTH) -> str:
    """Shorten a wide name in the middle, because names usually differ at the beginning or at the end."""
    if cell_len(name) <= width:
        return name
    end = name
    while cell_len(end) > (width - 1) // 2:
        end = end[1:]
    return set_cell_size(name, width - 1 - cell_len(end)).rstrip() + "…" + end
