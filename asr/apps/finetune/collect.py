"""Collect the utterances of a source: recognise its format, read it, examine its audio, and report problems."""

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from asr.apps.finetune.entry import SourceOptions, SourceReport, utterances
from asr.apps.finetune.formats import FORMATS, check_options, recognised
from asr.base.audio.find import search_audio
from asr.base.text.numbers import counted
from asr.base.text.printable import listed
from asr.core.data.manifest import Utterance
from asr.errors import AudioError, InputError, shown

MAX_NAMED = 10  # maximum number of reported problems
PLACE = re.compile(r".*?(?::\d+|: (?:task|object) [^:]+): ")  # where a problem is, at the beginning of its line
NAMES = re.compile(r"'[^']*'|(?<!\S)\S*[/.]\w\S*?(?=[:,]?(?:\s|$))")  # quoted values, and names of files


@dataclass(frozen=True, slots=True)
class Collected:
    """The utterances of a source.

    Args:
        format: name of the source's format.
        utterances: at least one utterance, in the order of the source; audio paths are as the source names them,
            relative to the working directory or absolute, and ids are unique.
        description: one line about the source: its kind, the columns that were read and ignored, the size, and the
            numbers of what was left out.
    """

    format: str
    utterances: list[Utterance]
    description: str


def collect(
    path: Path,
    options: SourceOptions,
    format: str | None,
    on_problem: Callable[[str], None],
    *,
    format_option: str = "--format",
) -> Collected:
    """Collect the utterances of a file or folder.

    Args:
        path: the file or folder.
        options: options of the formats.
        format: name of the format, a key of FORMATS; None: the only format that accepts the path.
        on_problem: called with a line, with file and line number, for each of the first MAX_NAMED problems, and with
            the number of further problems; also before an error because of these problems.
        format_option: option of the command that gives `format`, for errors.
    """
    if format is None:
        format = recognised(path, format_option)
    check_format(format, format_option)
    check_options(format, options)
    report = SourceReport()
    entries = list(FORMATS[format].read(path, options, report))
    collected = utterances(entries, report)
    if path.is_dir() and format != "parquet":  # whose audio is not in files
        named = {os.path.realpath(entry.audio) for entry in entries}
        report.dropped["recording (no text names it)"] = sum(
            os.path.realpath(file) not in named for file in _audio(path)
        )
    for problem in report.problems[:MAX_NAMED]:
        on_problem(problem)
    count = len(report.problems)
    if count > MAX_NAMED:
        on_problem(f"and {count - MAX_NAMED:,} more")
    if count and not options.skip_bad:
        cure = "Correct them, or leave out these utterances with --skip-bad"
        raise InputError(f"{path}: must be read without problems; got {counted(count, 'problem')}, see above. {cure}.")
    if not collected:
        raise InputError(f"{path}: must hold at least one utterance; none was found{_left_out(report)}.")
    return Collected(format, collected, _description(path, FORMATS[format].kind, collected, report))


def check_format(name: str, option: str) -> None:
    """Check the name of a format, which `option` gives."""
    if name not in FORMATS:
        raise InputError(f"{option} must be one of {', '.join(FORMATS)}; got {shown(name)}.")


def _description(path: Path, kind: str, collected: list[Utterance], report: SourceReport) -> str:
    columns = [name if name == purpose else f"{purpose}={name}" for purpose, name in report.columns.items()]
    ignored = [f"ignored: {listed([*report.ignored])}"] if report.ignored else []
    details = "; ".join([*([", ".join(columns)] if columns else []), *ignored])
    hours = sum(utterance.duration for utterance in collected) / 3600
    speakers = len({utterance.speaker for utterance in collected} - {None})
    num_empty = sum(not utterance.text.strip() for utterance in collected)
    size = f"{counted(len(collected), 'utterance')}, {hours:.2f} h, "
    size += counted(speakers, "known speaker") if speakers else "no speakers"
    num_unknown = sum(utterance.speaker is None for utterance in collected)
    size += f", {counted(num_unknown, 'utterance')} of unknown speakers" if speakers and num_unknown else ""
    size += f", {counted(num_empty, 'empty text')}" if num_empty else ""
    size += f", {counted(report.num_cut, 'utterance')} cut at the end of the recording" if report.num_cut else ""
    return f"{path}: {kind}{f' ({details})' if details else ''}, {size}{_left_out(report)}"


def _audio(folder: Path) -> list[Path]:
    """Return the recordings below a folder."""
    try:
        return search_audio(folder).recordings
    except AudioError:  # there are none
        return []


def _reason(problem: str) -> str:
    """Return what must hold, without the place, the names and the value of a problem, by which problems are counted."""
    reason = NAMES.sub("...", PLACE.sub("", problem, count=1).partition(";")[0])
    return reason.rpartition("...: ")[2].rstrip(".")


def _counted_reason(count: int, key: str) -> str:
    """Write a count with its noun, which a reason in parentheses may follow."""
    noun, bracket, reason = key.partition(" (")
    return counted(count, noun) + bracket + reason


def _left_out(report: SourceReport) -> str:
    """Return the numbers of problems and of what was dropped, as the end of a line."""
    reasons = Counter(map(_reason, report.problems))
    by_reason = "; ".join(f"{reason} ({count:,})" for reason, count in reasons.most_common(MAX_NAMED))
    problems = f", {len(report.problems):,} left out, see above: {by_reason}" if report.problems else ""
    dropped = ", ".join(_counted_reason(count, key) for key, count in report.dropped.items() if count)
    return problems + (f", dropped: {dropped}" if dropped else "")
