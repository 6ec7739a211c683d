"""Output formats of transcripts: plain text, JSON, subtitles, and times for sclite and for Praat.

`FORMATS[name].write(recording, transcript)` returns the file of one recording. `FORMATS[name].stream(...)` yields the
standard output for several recordings, which is a single valid document if the format allows it. Encode files and
standard output as UTF-8 with `errors="surrogateescape"`: names of recordings need not be UTF-8, and txt and ctm contain
them byte for byte.

All times are rounded to milliseconds. JSON has the recognised times. The other formats cannot represent words that
overlap or have no duration, so `asr.core.recognition.subtitles.side_by_side` adjusts the times first.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from asr.core.recognition.subtitles import cues, milliseconds, side_by_side
from asr.core.recognition.transcript import Transcript

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
    intervals = side_by_side(transcript.words)
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
    for word, (start, end) in zip(transcript.words, side_by_side(transcript.words), strict=True):
        if start > reached:
            labelled.append((reached, start, ""))
        labelled.append((start, end, word.text.replace('"', '""')))
        reached = end
    stop = max(milliseconds(transcript.duration), reached, 1)  # an interval must not be empty
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
