"""The results of asr.evaluate as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len

from asr.cli.side_by_side import WIDTH
from asr.cli.table import lay_out, short_name
from asr.text.numbers import counted, interval, number, rate
from asr.text.printable import printable

TITLES = (
    *("manifest", "utterances", "words", "WER %", "95 % interval", "raw %", "CER %"),
    *("subst.", "ins.", "del."),
)


def table(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Format the results as a table with a row per manifest, and with notes on the columns."""
    rows: list[tuple[str, ...]] = [TITLES]
    for name, row in summaries:
        edits = (str(row[kind]) for kind in ("substitutions", "insertions", "deletions"))
        sizes = (str(row["utterances"]), str(row["reference_words"]))
        scores = (
            rate(row["wer"]),
            interval(row["wer_interval"]),
            rate(row["raw_wer"]),
            rate(row["cer"]),
        )
        rows.append((short_name(printable(name)), *sizes, *scores, *edits))
    return "\n".join([*lay_out(rows), "", *notes(summaries)])


def notes(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return the notes on normalisation, intervals and speed."""
    _, last = summaries[-1]  # the last summary is the total
    has_gaps = any(row["utterances"] and row["raw_wer"] is None for _, row in summaries)
    missing = " (-: the references have neither)" if has_gaps else ""
    lines = [
        f"Texts are normalised by {last['normalizer']!r}; raw: the WER of texts as written, with case and punctuation"
        f"{missing}."
    ]
    lines.append("95 % interval: bootstrap over utterances.")
    if any(row["utterances"] and row["wer_interval"] is None for _, row in summaries):
        lines[-1] = f"{lines[-1][:-1]} (-: too few utterances, or no errors)."
    overs = [
        f"{short_name(printable(name))} {interval(row['wer_speaker_interval'])} ({row['speakers']} speakers)"
        for name, row in summaries
        if row["wer_speaker_interval"]
    ]
    if overs:
        lines[-1] = f"{lines[-1][:-1]}; over speakers: {', '.join(overs)}."
    wordless = [_wordless(name, row["wordless"]) for name, row in summaries if row["wordless"]]
    if wordless:
        lines.append(f"Recognised in utterances with an empty reference: {'; '.join(wordless)}.")
    if last["real_time_factor"] is not None:
        each = [f"{short_name(printable(name))} {_hours(row)}" for name, row in summaries[:-1]]
        parts = f" ({', '.join(each)})" if each else ""
        lines.append(f"{_hours(last)} of audio{parts}, recognised in {last['real_time_factor']:.4f} of its duration.")
    return [_filled(note) for note in lines]


def _filled(text: str) -> str:
    """Wrap a text to a terminal's width; unlike in textwrap, a wide character counts as two columns."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1].strip() and cell_len(lines[-1]) + 1 + cell_len(word) > WIDTH:
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def _hours(row: Mapping[str, Any]) -> str:
    return f"{row['audio_seconds'] / 3600:.2f} h"


def _wordless(name: str, written: Mapping[str, Any]) -> str:
    words, seconds = counted(written["words"], "word"), written["seconds"]
    return f"{short_name(printable(name))} {words} in {seconds:.0f} s, {number(written['words_an_hour'])} an hour"
