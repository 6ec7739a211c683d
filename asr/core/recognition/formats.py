"""Output formats of transcripts: plain text, JSON, subtitles, and times for sclite and for Praat.

`FORMATS[name].write(recording, transcript)` returns the file of one recording. `FORMATS[name].stream(...)` yields the
standard output for several recordings, which is a single valid document if the format allows it. Encode files and
standard output as UTF-8 with `errors="surrogateescape"`: names of recordings need not be UTF-8, and txt and ctm contain
them byte for byte.

All times are rounded to milliseconds. JSON has the recognised times. The other formats cannot represent words that
overlap or have no duration, so `_side_by_side` adjusts the times first.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from asr.core.recognition.transcript import Transcript, Word

# Limits for subtitles, following broadcasters.
MAX_LINES = 2
MAX_LINE_CHARACTERS = 42  # a longer word gets a separate line, because words are not split
MAX_CUE_MILLISECONDS = 7000
MIN_CUE_MILLISECONDS = 1000  # minimum duration of a cue, unless the next cue begins earlier
MAX_PAUSE_MILLISECONDS = 800  # a longer pause begins a new cue

Writer = Callable[[str, Transcript], str]  # arguments: the recording's path or the utterance's id; the transcript


@dataclass(frozen=True, slots=True)
class Format:
    """An output format of transcripts.

    Args:
        suffix: suffix of a file in this format.
        write: makes the file of one recording.
        entry: makes the entry of one recording in a stream.
        head: text before the first entry of a stream.
        separator: text between two entries.
        tail: text after the last entry.
        single: whether a document contains only one recording, so that several recordings need several files.
        key: maps a recording's path to its name in a stream; None: the name is the path. Recordings must be sorted by
            their names, and names must be unique.
    """

    suffix: str
    write: Writer
    entry: Writer
    head: str = ""
    separator: str = ""
    tail: str = ""
    single: bool = False
    key: Callable[[str], str] | None = None

    def stream(self, transcripts: Iterable[tuple[str, Transcript]]) -> Iterator[str]:
        """Yield the document of all recordings in pieces; a piece is yielded as soon as its transcript is available."""
        yield self.head
        for number, (recording, transcript) in enumerate(transcripts):
            yield (self.separator if number else "") + self.entry(recording, transcript)
        yield self.tail


def _text(recording: str, transcript: Transcript) -> str:
    return transcript.text + "\n"


def _text_line(recording: str, transcript: Transcript) -> str:
    return f"{recording}\t{transcript.text}\n"


def json_text(entry: Mapping[str, Any], *, indent: int | None = None) -> str:
    """Return an object as JSON in valid UTF-8; bytes of a file name that are not UTF-8 become \\udc80 to \\udcff.

    json.loads and os.fsencode restore the file name.
    """
    text = json.dumps(entry, ensure_ascii=False, indent=indent)
    return re.sub(r"[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _json(recording: str, transcript: Transcript, *, indent: int | None) -> str:
    return json_text({"id": recording, **transcript.as_dict()}, indent=indent)


def _json_file(recording: str, transcript: Transcript) -> str:
    return _json(recording, transcript, indent=2) + "\n"


def _json_entry(recording: str, transcript: Transcript) -> str:
    return "\n" + _json(recording, transcript, indent=2)


def _json_line(recording: str, transcript: Transcript) -> str:
    return _json(recording, transcript, indent=None) + "\n"


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _side_by_side(words: Sequence[Word]) -> list[tuple[int, int]]:
    """Adjust the times of words so that words do not overlap and each lasts at least a millisecond.

    A word ends no later than the next word begins. Words that begin together get equal shares of the time until the
    last of them ends or the next word begins, whichever is earlier. If this time is shorter than one millisecond per
    word, it is extended, and the following words start later.

    Returns:
        Start and end of each word, in milliseconds.
    """
    starts = [_milliseconds(word.start) for word in words]
    intervals: list[tuple[int, int]] = []
    floor = 0
    while len(intervals) < len(words):
        first = after = len(intervals)
        start = max(starts[first], floor)
        while after < len(words) and starts[after] <= start:
            after += 1
        count = after - first
        end = max(_milliseconds(word.end) for word in words[first:after])
        if after < len(words):
            end = min(end, starts[after])
        floor = max(end, start + count)
        bounds = [start + (floor - start) * number // count for number in range(count + 1)]
        intervals += pairwise(bounds)
    return intervals


@dataclass(frozen=True, slots=True)
class Cue:
    """Words that a subtitle shows together.

    Args:
        words: words of the transcript, in order.
        lines: the words, broken into lines.
        start: when the cue appears, in milliseconds.
        end: when it disappears, in milliseconds.
    """

    words: Sequence[Word]
    lines: list[str]
    start: int
    end: int


def _lines(words: Sequence[Word]) -> list[str]:
    """Break words into lines of at most MAX_LINE_CHARACTERS, filling each line."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word.text) <= MAX_LINE_CHARACTERS:
            lines[-1] += " " + word.text
        else:
            lines.append(word.text)
    return lines


def cues(transcript: Transcript) -> list[Cue]:
    """Group the words into cues within the limits at the top of this file."""
    words, intervals = transcript.words, _side_by_side(transcript.words)
    firsts: list[int] = []  # index of each cue's first word
    for number, (start, end) in enumerate(intervals):
        if (
            not firsts
            or start - intervals[number - 1][1] > MAX_PAUSE_MILLISECONDS
            or end - intervals[firsts[-1]][0] > MAX_CUE_MILLISECONDS
            or len(_lines(words[firsts[-1] : number + 1])) > MAX_LINES
        ):
            firsts.append(number)

    grouped = []
    for first, after in pairwise([*firsts, len(words)]):
        start, end = intervals[first][0], intervals[after - 1][1]
        room = intervals[after][0] if after < len(words) else max(_milliseconds(transcript.duration), end)
        end = max(end, min(start + MIN_CUE_MILLISECONDS, room))
        end = min(end, start + MAX_CUE_MILLISECONDS)  # a single word can exceed this maximum
        grouped.append(Cue(words[first:after], _lines(words[first:after]), start, end))
    return grouped


def _clock(milliseconds: int, *, point: str) -> str:
    """Format a time for subtitles as HH:MM:SS, `point` and milliseconds; from 100 hours on, HH has more digits."""
    seconds, milliseconds = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{milliseconds:03}"


def _srt(recording: str, transcript: Transcript) -> str:
    """Write SubRip subtitles. The format has no escapes, so --> in the text becomes →."""
    parts = []
    for number, cue in enumerate(cues(transcript), start=1):
        text = "\n".join(cue.lines).replace("-->", "→")  # some readers parse any line with --> as times
        parts.append(f"{number}\n{_clock(cue.start, point=',')} --> {_clock(cue.end, point=',')}\n{text}\n")
    return "\n".join(parts)


def _vtt(recording: str, transcript: Transcript) -> str:
    """Write WebVTT, W3C Candidate Recommendation 2019. Escaping > also keeps --> out of the text."""
    parts = ["WEBVTT\n"]
    for cue in cues(transcript):
        text = "\n".join(cue.lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        parts.append(f"{_clock(cue.start, point='.')} --> {_clock(cue.end, point='.')}\n{text}\n")
    return "\n".join(parts)


def _waveform_name(recording: str) -> str:
    """Return a recording's name in CTM: no folder, no extension, and _ for white space, which separates fields.

    A leading ;; would begin a comment, so its first semicolon also becomes _.
    """
    return re.sub(r"\s|^;(?=;)", "_", PurePath(recording).stem)


def _ctm(recording: str, transcript: Transcript) -> str:
    """Write CTM, one line per word: waveform, channel (1), start and duration in seconds, word, confidence.

    Source: SCTK's documentation of sclite's input formats (infmts.htm). Any channel name is valid if the reference also
    uses it. A file must be sorted by waveform, channel and start.
    """
    name = _waveform_name(recording)
    intervals = _side_by_side(transcript.words)
    return "".join(
        f"{name} 1 {start / 1000:.3f} {(end - start) / 1000:.3f} {word.text} {word.confidence:.4f}\n"
        for word, (start, end) in zip(transcript.words, intervals, strict=True)
    )


def _textgrid(recording: str, transcript: Transcript) -> str:
    """Write Praat's TextGrid in its long text format: one interval tier, "words", that covers the whole recording.

    Source: Praat's manual, "TextGrid file formats". Silence between words is an interval without text.
    """
    labelled: list[tuple[int, int, str]] = []
    reached = 0
    for word, (start, end) in zip(transcript.words, _side_by_side(transcript.words), strict=True):
        if start > reached:
            labelled.append((reached, start, ""))
        labelled.append((start, end, word.text.replace('"', '""')))
        reached = end
    stop = max(_milliseconds(transcript.duration), reached, 1)  # an interval must not be empty
    if stop > reached:
        labelled.append((reached, stop, ""))

    lines = [
        'File type = "ooTextFile"',
        'Object class = "TextGrid"',
        "",
        "xmin = 0",
        f"xmax = {stop / 1000:.3f}",
        "tiers? <exists>",
        "size = 1",
        "item []:",
        "    item [1]:",
        '        class = "IntervalTier"',
        '        name = "words"',
        "        xmin = 0",
        f"        xmax = {stop / 1000:.3f}",
        f"        intervals: size = {len(labelled)}",
    ]
    for number, (start, end, text) in enumerate(labelled, start=1):
        lines += [
            f"        intervals [{number}]:",
            f"            xmin = {start / 1000:.3f}",
            f"            xmax = {end / 1000:.3f}",
            f'            text = "{text}"',
        ]
    return "\n".join([*lines, ""])


FORMATS: dict[str, Format] = {
    "txt": Format(".txt", _text, _text_line),
    "json": Format(".json", _json_file, _json_entry, head="[", separator=",", tail="\n]\n"),
    "jsonl": Format(".jsonl", _json_line, _json_line),
    "srt": Format(".srt", _srt, _srt, single=True),
    "vtt": Format(".vtt", _vtt, _vtt, single=True),
    "ctm": Format(".ctm", _ctm, _ctm, key=_waveform_name),
    "textgrid": Format(".TextGrid", _textgrid, _textgrid, single=True),
}
