"""The formats transcripts are written in: plain text, JSON, subtitles, time marks for sclite and for Praat.

`FORMATS[name].write(recording, transcript)` is the file of one recording; `FORMATS[name].stream(...)` is what standard
output gets for several, one valid document if the format allows. Both are text, to be encoded as UTF-8 with
`errors="surrogateescape"`: the names of recordings need not be UTF-8, and txt and ctm hold them byte for byte.

All times are rounded to milliseconds. Except in JSON, which holds the words as they were found, words are first laid
side by side (`_side_by_side`), for no other format can hold words that overlap or that take no time.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from asr.recognition.transcript import Transcript, Word

# Subtitles, as broadcasters make them: two lines that can be read at a glance.
MAX_LINES = 2
MAX_LINE_CHARACTERS = 42  # a longer word has a line to itself: words are not split
MAX_CUE_MILLISECONDS = 7000
MIN_CUE_MILLISECONDS = 1000  # where the next cue leaves room
MAX_PAUSE_MILLISECONDS = 800  # a longer one begins a new cue

Writer = Callable[[str, Transcript], str]  # the recording's name (its path, or an utterance's id), its transcript


@dataclass(frozen=True, slots=True)
class Format:
    """A way to write transcripts.

    Args:
        suffix: of a file in this format.
        write: makes the file of one recording.
        entry: makes what a recording contributes to a stream.
        head: opens a stream.
        separator: parts the entries of a stream.
        tail: closes a stream.
        single: several recordings cannot be one document; each needs a file of its own.
        key: what a stream calls a recording, if not by its path: recordings must come in the order of their keys, and
            no two may share one.
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
        """Yield the pieces of a document on all recordings, each as soon as its transcript is there."""
        yield self.head
        for number, (recording, transcript) in enumerate(transcripts):
            yield (self.separator if number else "") + self.entry(recording, transcript)
        yield self.tail


def _text(recording: str, transcript: Transcript) -> str:
    return transcript.text + "\n"


def _text_line(recording: str, transcript: Transcript) -> str:
    return f"{recording}\t{transcript.text}\n"


def json_text(entry: Mapping[str, Any], *, indent: int | None = None) -> str:
    """One object, valid UTF-8 in any case: a byte of a name that is not is escaped as Python's \\udc80 to \\udcff.

    json.loads and os.fsencode give the file's name back.
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
    """Lay words out so that each takes time of its own, at least a millisecond, and none overlap.

    A word ends where the next begins, at the latest; words that begin together share the stretch evenly. Only words
    that have no room at all push the following ones back, by the millisecond each.

    Returns:
        start and end of each word, in milliseconds.
    """
    starts = [_milliseconds(word.start) for word in words]
    intervals: list[tuple[int, int]] = []
    floor = 0
    while len(intervals) < len(words):
        first = behind = len(intervals)
        start = max(starts[first], floor)
        while behind < len(words) and starts[behind] <= start:
            behind += 1
        count = behind - first
        end = max(_milliseconds(word.end) for word in words[first:behind])
        if behind < len(words):
            end = min(end, starts[behind])
        floor = max(end, start + count)
        bounds = [start + (floor - start) * number // count for number in range(count + 1)]
        intervals += pairwise(bounds)
    return intervals


@dataclass(frozen=True, slots=True)
class Cue:
    """Words that subtitles show at a time.

    Args:
        words: of the transcript, in order.
        lines: the words, broken into lines.
        start: when the cue appears, in milliseconds.
        end: when it disappears, in milliseconds.
    """

    words: Sequence[Word]
    lines: list[str]
    start: int
    end: int


def _lines(words: Sequence[Word]) -> list[str]:
    """Break words into lines, as full as they may be."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word.text) <= MAX_LINE_CHARACTERS:
            lines[-1] += " " + word.text
        else:
            lines.append(word.text)
    return lines


def cues(transcript: Transcript) -> list[Cue]:
    """Group the words into cues that a person can read; the constants above are the rules."""
    words, intervals = transcript.words, _side_by_side(transcript.words)
    firsts: list[int] = []  # the number of each cue's first word
    for number, (start, end) in enumerate(intervals):
        if (
            not firsts
            or start - intervals[number - 1][1] > MAX_PAUSE_MILLISECONDS
            or end - intervals[firsts[-1]][0] > MAX_CUE_MILLISECONDS
            or len(_lines(words[firsts[-1] : number + 1])) > MAX_LINES
        ):
            firsts.append(number)

    grouped = []
    for first, behind in pairwise([*firsts, len(words)]):
        start, end = intervals[first][0], intervals[behind - 1][1]
        room = intervals[behind][0] if behind < len(words) else max(_milliseconds(transcript.duration), end)
        end = max(end, min(start + MIN_CUE_MILLISECONDS, room))
        end = min(end, start + MAX_CUE_MILLISECONDS)  # one long word
        grouped.append(Cue(words[first:behind], _lines(words[first:behind]), start, end))
    return grouped


def _clock(milliseconds: int, *, point: str) -> str:
    """A time as subtitles write it: HH:MM:SS, the point, and three digits; more digits from the 100th hour on."""
    seconds, milliseconds = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{milliseconds:03}"


def _srt(recording: str, transcript: Transcript) -> str:
    """SubRip subtitles. The text is plain, for the format has no escapes; an arrow in it, as between times, is →."""
    parts = []
    for number, cue in enumerate(cues(transcript), start=1):
        text = "\n".join(cue.lines).replace("-->", "→")  # some readers take any line with --> for times
        parts.append(f"{number}\n{_clock(cue.start, point=',')} --> {_clock(cue.end, point=',')}\n{text}\n")
    return "\n".join(parts)


def _vtt(recording: str, transcript: Transcript) -> str:
    """WebVTT, W3C Candidate Recommendation 2019. With every > escaped the text cannot hold the arrow either."""
    parts = ["WEBVTT\n"]
    for cue in cues(transcript):
        text = "\n".join(cue.lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        parts.append(f"{_clock(cue.start, point='.')} --> {_clock(cue.end, point='.')}\n{text}\n")
    return "\n".join(parts)


def _waveform_name(recording: str) -> str:
    """A recording as a CTM file calls it: no folder, no extension, and white space, which parts the fields, is _.

    A name that would open a comment, ;;, has its first character replaced as well.
    """
    return re.sub(r"\s|^;(?=;)", "_", PurePath(recording).stem)


def _ctm(recording: str, transcript: Transcript) -> str:
    """Time marks, a line a word: waveform, channel (1), start and duration in seconds, word, confidence.

    Source: SCTK's documentation of sclite's input formats (infmts.htm). It is indifferent to what the channel is called
    as long as the reference calls it the same. A file must be sorted by waveform, channel and start.
    """
    name = _waveform_name(recording)
    intervals = _side_by_side(transcript.words)
    return "".join(
        f"{name} 1 {start / 1000:.3f} {(end - start) / 1000:.3f} {word.text} {word.confidence:.4f}\n"
        for word, (start, end) in zip(transcript.words, intervals, strict=True)
    )


def _textgrid(recording: str, transcript: Transcript) -> str:
    """Praat's TextGrid, its long text format: a tier of intervals, "words", that leaves no time out.

    Source: Praat's manual, "TextGrid file formats". The silence between words is an interval without text.
    """
    labelled: list[tuple[int, int, str]] = []
    reached = 0
    for word, (start, end) in zip(transcript.words, _side_by_side(transcript.words), strict=True):
        if start > reached:
            labelled.append((reached, start, ""))
        labelled.append((start, end, word.text.replace('"', '""')))
        reached = end
    stop = max(_milliseconds(transcript.duration), reached, 1)  # an interval takes time, if there was none to hear
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
