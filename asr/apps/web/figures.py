"""Parts of a report: figures, facts by name, tables of frequent items."""

from collections.abc import Sequence

from asr.apps.web.page import escape


def figure(name: str, label: str, value: str, details: Sequence[str], main: bool = False, unit: str = "") -> str:
    """Return a figure: a number in large print. `name` lets programs find its value in the page."""
    unit = f' <span class="unit">{escape(unit)}</span>' if unit else ""
    below = "".join(f'<span class="detail">{escape(detail)}</span>' for detail in details)
    return (
        f'<div class="figure{" main" if main else ""}"><span class="label">{escape(label)}</span>'
        f'<span class="value"><span data-figure="{escape(name)}">{escape(value)}</span>{unit}</span>{below}</div>'
    )


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Return a list of facts: names and values."""
    return '<dl class="facts">' + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in pairs) + "</dl>"


def frequent(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], shown: int = 12) -> str:
    """Return a table whose last column is a number; rows after the first `shown` are collapsed."""
    if not rows:
        return f"<div><h3>{escape(title)}</h3><p class='note'>none</p></div>"
    tables = [_table(heads, rows[:shown])]
    if len(rows) > shown:
        more = f"<details><summary>{len(rows) - shown} more</summary>{_table(heads, rows[shown:])}</details>"
        tables.append(more)
    return f'<div class="counted"><h3>{escape(title)}</h3>{"".join(tables)}</div>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    *names, last = (f'<th scope="col">{escape(head)}</th>' for head in heads)
    lines = []
    for row in rows:
        *cells, number = (escape(cell) for cell in row)
        texts = "".join(f"<td><bdi>{cell}</bdi></td>" for cell in cells)
        lines.append(f'<tr>{texts}<td class="number">{number}</td></tr>')
    last = last.replace("<th", '<th class="number"')
    return f"<table><thead><tr>{''.join(names)}{last}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
