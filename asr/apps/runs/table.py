"""A table of training runs: state, settings that differ, error rates, and the significance of their differences."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asr.apps.runs.changed_settings import setting_columns
from asr.apps.runs.ranking import LEVEL, Gap, gaps_to_best
from asr.apps.runs.summary import RunSummary
from asr.base.text.numbers import NONE, counted, duration, interval, points, probability, rate
from asr.base.text.printable import printable
from asr.base.text.table import latex, lay_out, markdown, short_name
from asr.core.run.names import COUNTS
from asr.errors import InputError

FORMATS: dict[str, Callable[[Sequence[Sequence[str]], int], list[str]]] = {
    "text": lay_out,
    "markdown": markdown,
    "latex": latex,
}
STATE_WIDTH = 80  # columns; train.log has the whole message of a failed run
BEST, NOT_STORED, NOT_COMPARABLE = "best", "not stored", "not comparable"
ABOUT = {  # explanations of cells
    NOT_STORED: f"{NOT_STORED}: not in {COUNTS}, which earlier versions did not write; repeat the run's command.",
    NOT_COMPARABLE: f"{NOT_COMPARABLE}: tested on other utterances or references than most runs.",
}
BEST_IS = "to best: difference to the run with the fewest errors, in points, with its 95 % interval."
METHOD = (
    "corrected p: of a paired bootstrap over speakers, or over utterances if not all speakers are known; corrected by "
    f"Holm's method for {{comparisons}}; * p < {LEVEL}."
)

Columns = Mapping[str, Sequence[str]]


def run_table(runs: Sequence[RunSummary], form: str, sort: str | None) -> list[str]:
    """Return the lines of the table, and of notes on it.

    Args:
        runs: the runs.
        form: a key of `FORMATS`.
        sort: what to sort by, in ascending order, see `order`; None: the error rate on the first test manifest.
    """
    manifests = list(dict.fromkeys(name for run in runs for name, result in run.results.items() if "wer" in result))
    settings = setting_columns([run.settings for run in runs])
    gaps = gaps_to_best(
        {name: [run.counts.get(name) if name in run.results else None for run in runs] for name in manifests}
    )
    columns: dict[str, Sequence[str]] = {
        "run": [printable(run.name) for run in runs],
        "state": [short_name(printable(run.state), STATE_WIDTH) for run in runs],
        **settings,
        "valid WER %": [rate(run.valid_wer) for run in runs],
    }
    num_left = 2 + len(settings)
    for name in manifests:
        columns |= _result_columns(name, [run.results.get(name, {}) for run in runs], gaps[name])
    columns["time"] = [NONE if run.wall_seconds is None else duration(run.wall_seconds) for run in runs]
    columns["parameters"] = [NONE if run.parameters is None else f"{run.parameters:,}" for run in runs]
    rows = list(zip(*columns.values(), strict=True))
    sorted_rows = [rows[index] for index in order(runs, manifests, sort)]
    notes = _notes(gaps, columns, form)
    return [*FORMATS[form]([tuple(columns), *sorted_rows], num_left), *([""] if notes else []), *notes]


def order(runs: Sequence[RunSummary], manifests: Sequence[str], sort: str | None) -> list[int]:
    """Return the order of the runs; runs without a value come last.

    Args:
        runs: the runs.
        manifests: names of the test manifests.
        sort: name, valid, time, parameters, a manifest, whose error rate counts, or a setting.
    """
    values: dict[str, list[Any]] = {
        **{key: [run.settings.get(key) for run in runs] for run in runs for key in run.settings},
        **{name: [error_rate(run.results.get(name, {})) for run in runs] for name in manifests},
        "name": [run.name for run in runs],
        "valid": [run.valid_wer for run in runs],
        "time": [run.wall_seconds for run in runs],
        "parameters": [run.parameters for run in runs],
    }
    by = sort if sort is not None else next(iter(manifests), "valid")
    if by not in values:
        choices = ", ".join(map(printable, [*manifests, "valid", "time", "parameters", "name"]))
        raise InputError(f"--sort must be {choices}, or a setting of the runs, such as seed; got {by!r}.")

    def key(index: int) -> tuple[bool, bool, Any]:
        value = values[by][index]
        is_number = isinstance(value, int | float)
        return value is None, not is_number, value if is_number else str(value)

    return sorted(range(len(runs)), key=key)


def error_rate(result: Mapping[str, Any], suffix: str = "") -> Any:
    """Return the rate to compare of an entry of results.json: the CER for a script without spaces, else the WER.

    Args:
        result: the entry; an empty one gives None.
        suffix: _interval: the rate's interval instead.
    """
    return result.get(("cer" if result.get("unspaced") else "wer") + suffix)


def _result_columns(name: str, results: Sequence[Mapping[str, Any]], gaps: Sequence[Gap | None]) -> Columns:
    """Return the columns of a test manifest."""
    measure = "CER" if any(result.get("unspaced") for result in results) else "WER"
    title = printable(name)
    rates = [_with(rate(error_rate(result)), error_rate(result, "_interval"), rate) for result in results]
    return {
        f"{title} {measure} %": rates,
        f"{title} to best": [_to_best(gap, result) for gap, result in zip(gaps, results, strict=True)],
        f"{title} corrected p": [NONE if gap is None else _p_value(gap.p_value) for gap in gaps],
    }


def _to_best(gap: Gap | None, result: Mapping[str, Any]) -> str:
    if gap is None:
        return NOT_STORED if result else NONE
    if gap.is_best:
        return BEST
    return NOT_COMPARABLE if gap.rate is None else _with(points(gap.rate), gap.interval, points)


def _with(value: str, ends: Sequence[float] | None, write: Callable[[float | None], str]) -> str:
    return value if ends is None else f"{value} ({interval(ends, write)})"


def _p_value(p_value: float | None) -> str:
    return f"{probability(p_value)} *" if p_value is not None and p_value < LEVEL else probability(p_value)


def _notes(gaps: Mapping[str, Sequence[Gap | None]], columns: Columns, form: str) -> list[str]:
    """Return lines that explain the cells of the table."""
    num_tests = sum(gap is not None and gap.p_value is not None for row in gaps.values() for gap in row)
    cells = {cell for column in columns.values() for cell in column}
    notes = [about for cell, about in ABOUT.items() if cell in cells]
    if num_tests:
        notes = [BEST_IS, METHOD.format(comparisons=counted(num_tests, "comparison")), *notes]
    return [f"{'% ' if form == 'latex' else ''}{note}" for note in notes]
