"""The results of asr.evaluate as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len

from asr.cli.side_by_side import WIDTH
from asr.cli.table import lay_out, short_name
from asr.text.numbers import counted, interval, number, rate
from asr.text.printable import printable
from asr.text.scripts import NO_WORDS

TITLES = (
    *("manifest", "utterances", "words", "WER %", "95 % interval", "raw %", "CER %"),
    *("subst.", "ins.", "del."),
)
UNSPACED_TITLES = (
    *("manifest", "utterances", "characters", "CER %", "95 % interval", "WER %", "raw %"),
    *("subst.", "ins.", "del."),
)


def table(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Format the results as a table with a row per manifest, and with notes on the columns.

    If most letters of a manifest belong to scripts without spaces, the CER is first, and edits are of characters.
    """
    by_character = any(row["unspaced"] for _, row in summaries)
    rows: list[tuple[str, ...]] = [UNSPACED_TITLES if by_character else TITLES]
    for name, row in summaries:
        counts = row["characters"] if by_character else row
        edits = (str(counts[kind]) for kind in ("substitutions", "insertions", "deletions"))
        length = counts["reference_length" if by_character else "reference_words"]
        sizes = (str(row["utterances"]), str(length))
        wer, cer = (rate(row["wer"]), rate(row["raw_wer"])), rate(row["cer"])
        scores = (wer[0], interval(row["wer_interval"]), wer[1], cer)
        if by_character:
            scores = (cer, interval(row["cer_interval"]), *wer)
        rows.append((short_name(printable(name)), *sizes, *scores, *edits))
    return "\n".join([*lay_out(rows), "", *notes(summaries)])


def notes(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return the notes on normalisation, intervals and speed."""
    _, last = summaries[-1]  # the last summary is the total
    measure = "cer" if any(row["unspaced"] for _, row in summaries) else "wer"
    has_gaps = any(row["utterances"] and row["raw_wer"] is None for _, row in summaries)
    missing = " (-: the references have neither)" if has_gaps else ""
    lines = [
        f"Texts are normalised by {last['normalizer']!r}; raw: the WER of texts as written, with case and punctuation"
        f"{missing}."
    ]
    if measure == "cer":
        lines.insert(0, NO_WORDS)
    lines.append("95 % interval: bootstrap over utterances.")
    if any(row["utterances"] and row[f"{measure}_interval"] is None for _, row in summaries):
        lines[-1] = f"{lines[-1][:-1]} (-: too few utterances, or no errors)."
    overs = [
        f"{short_name(printable(name))} {interval(row[f'{measure}_speaker_interval'])} ({row['speakers']} speakers)"
        for name, row in summaries
        if row[f"{measure}_speaker_interval"]
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
