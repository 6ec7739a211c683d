"""python -m benchmarks.subtitles TRANSCRIPTS.jsonl: subtitles that break the rules of broadcasters, in percent.

TRANSCRIPTS.jsonl is the output of `python -m asr.transcribe ... --format jsonl`. The row "filled" groups the words
without looking ahead: a cue takes words until it is full, and ends with its last word or after a second.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from asr.core.recognition import subtitles
from asr.core.recognition.subtitles import Cue, Grouping
from asr.core.recognition.transcript import Transcript, Word
from benchmarks import results
from benchmarks.machine import about
from benchmarks.results import Results, fixed

PAUSE_MILLISECONDS = 300  # a break at a shorter pause, and not at the end of a clause, is within a phrase


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row for each way of grouping."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.subtitles", description=__doc__)
    parser.add_argument("transcripts", metavar="TRANSCRIPTS.jsonl", type=Path)
    results.add_options(parser)
    options = parser.parse_args(arguments)
    lines = options.transcripts.read_text(encoding="utf-8").splitlines()
    transcripts = [read(json.loads(line)) for line in lines]
    rules = ("too long line", "under 1 s", "over 7 s", "over 17 characters a s", "break within a phrase")
    table = Results(
        "subtitles",
        {"grouping": str, "hours": fixed(2), "cues": fixed(0), **dict.fromkeys(rules, fixed(1)), "any": fixed(1)},
        bars="any",
    )
    for name, group in (("filled", filled), ("asr", subtitles.cues)):
        faults = [row for transcript in transcripts for row in faults_of(group(transcript))]
        shares = [100 * sum(column) / len(faults) for column in zip(*faults, strict=True)]
        hours = sum(transcript.duration for transcript in transcripts) / 3600
        table.row(name, hours, len(faults), *shares, 100 * sum(map(any, faults)) / len(faults))
    table.save(options.output_dir, about(options))
    return 0


def read(entry: dict[str, object]) -> Transcript:
    """Return a transcript of `--format jsonl`."""
    words = tuple(Word(**word) for word in entry["words"])  # type: ignore[attr-defined]
    return Transcript(words, (), float(str(entry["duration"])))


def faults_of(cues: Sequence[Cue]) -> list[tuple[bool, ...]]:
    """Return for each cue which of the rules it breaks."""
    faults: list[tuple[bool, ...]] = []
    for number, cue in enumerate(cues):
        seconds, text = (cue.end - cue.start) / 1000, " ".join(cue.lines)
        ends = subtitles.SENTENCE_ENDS + subtitles.CLAUSE_ENDS
        gap = cues[number + 1].start - 1000 * cue.words[-1].end if number + 1 < len(cues) else PAUSE_MILLISECONDS
        faults.append(
            (
                max(map(len, cue.lines)) > subtitles.MAX_LINE_CHARACTERS,
                seconds < subtitles.MIN_CUE_MILLISECONDS / 1000,
                seconds > subtitles.MAX_CUE_MILLISECONDS / 1000,
                len(text) > subtitles.CHARACTERS_A_SECOND * seconds + 1e-9,
                gap < PAUSE_MILLISECONDS and not text.endswith(ends),
            )
        )
    return faults


def filled(transcript: Transcript) -> list[Cue]:
    """Group the words without looking ahead."""
    grouping, firsts = Grouping(transcript), [0]
    for after in range(2, len(grouping.words) + 1):
        pause = grouping.times[after - 1][0] - grouping.times[after - 2][1] > subtitles.MAX_PAUSE_MILLISECONDS
        if pause or not grouping.fits(firsts[-1], after):
            firsts.append(after - 1)
    cues = []
    for first, after in pairwise([*firsts, len(grouping.words)]):
        start, end = grouping.times[first][0], grouping.times[after - 1][1]
        room = grouping.times[after][0] if after < len(grouping.words) else max(end, grouping.duration)
        end = min(max(end, min(start + subtitles.MIN_CUE_MILLISECONDS, room)), start + subtitles.MAX_CUE_MILLISECONDS)
        words = grouping.words[first:after]
        cues.append(Cue(words, subtitles.filled_lines(words), start, end))
    return cues


if __name__ == "__main__":
    sys.exit(main())
