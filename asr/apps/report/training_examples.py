"""Part of a run's page: hypotheses of a few validation utterances during training."""

from collections.abc import Sequence

from asr.apps.web.page import escape
from asr.base.text.word_errors import Edit, align_words
from asr.core.run.names import EXAMPLES
from asr.core.run.validation_samples import ValidationSample

MAX_ROWS = 8  # maximum number of rows of an utterance

LEGEND = (
    '<p class="note">Marked: <span class="sub">substituted</span> <span class="ins">inserted</span> '
    '<span class="del">deleted</span>. Consecutive validations with the same hypothesis share a row.</p>'
)


def examples(samples: Sequence[ValidationSample]) -> str:
    """Return a table for each utterance: its reference, and the hypothesis of each validation."""
    if not samples:
        return f"<p>{EXAMPLES} is missing or empty.</p>"
    by_id: dict[str, list[ValidationSample]] = {}
    for sample in samples:
        by_id.setdefault(sample.id, []).append(sample)
    tables = "".join(f"<div>{_table(name, lines)}</div>" for name, lines in by_id.items())
    return f'{LEGEND}<div class="examples">{tables}</div>'


def equal_in_a_row(lines: Sequence[ValidationSample]) -> list[tuple[ValidationSample, ValidationSample]]:
    """Group consecutive validations with equal hypotheses; return the first and the last validation of each group."""
    joined: list[tuple[ValidationSample, ValidationSample]] = []
    for line in lines:
        if joined and joined[-1][0].hypothesis == line.hypothesis:
            joined[-1] = (joined[-1][0], line)
        else:
            joined.append((line, line))
    return joined


def _table(name: str, lines: Sequence[ValidationSample]) -> str:
    rows = equal_in_a_row(lines)
    shown = rows
    if len(rows) > MAX_ROWS:
        shown = [rows[index * (len(rows) - 1) // (MAX_ROWS - 1)] for index in range(MAX_ROWS)]
    reference = lines[-1].reference
    body = [
        _row(f"{first.step:,}" + (f" to {last.step:,}" if last is not first else ""), first) for first, last in shown
    ]
    left_out = len(rows) - len(shown)
    note = f'<p class="note">{left_out:,} rows between these are left out.</p>' if left_out else ""
    return (
        f'<h3><bdi>{escape(name)}</bdi></h3><div class="table-scroll" tabindex="0"><table>'
        '<thead><tr><th scope="col">step</th><th scope="col" class="number">errors</th>'
        '<th scope="col">recognised</th></tr></thead>'
        f'<tbody>{"".join(body)}<tr><th scope="row">reference</th><td class="number">of {len(reference.split()):,}</td>'
        f"<td><bdi>{escape(reference) or _nothing()}</bdi></td></tr></tbody></table></div>{note}"
    )


def _row(steps: str, line: ValidationSample) -> str:
    edits = align_words(line.reference, line.hypothesis)
    errors = sum(edit.kind != "equal" for edit in edits)
    text = " ".join(map(_marked, edits)) or _nothing()
    return f'<tr><th scope="row">{steps}</th><td class="number">{errors}</td><td><bdi>{text}</bdi></td></tr>'


def _marked(edit: Edit) -> str:
    """Mark a word by colour and line style, and by a text for screen readers."""
    match edit.kind:
        case "equal":
            return escape(edit.hypothesis)
        case "substitution":
            explanation = f"instead of {edit.reference}"
            return _span("sub", edit.hypothesis, explanation)
        case "insertion":
            return _span("ins", edit.hypothesis, "inserted")
        case "deletion":
            return _span("del", edit.reference, "deleted")


def _span(kind: str, word: str | None, explanation: str) -> str:
    hidden = f'<span class="hidden-text"> ({escape(explanation)})</span>'
    return f'<span class="{kind}" title="{escape(explanation)}">{escape(word)}{hidden}</span>'


def _nothing() -> str:
    return '<span class="muted">nothing</span>'
