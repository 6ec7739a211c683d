"""Read a subset from the original folder layout: SUBSET/speaker/chapter/*.flac and SPEAKER-CHAPTER.trans.txt.

Each deviation is reported as a Problem. If content is missing, the utterance is left out with a warning, because copies
of a part of the corpus are common. Damaged content is an error; after the user deletes it, it counts as missing.
"""

import re
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import soundfile

from asr.core.data.manifest import Utterance
from asr.errors import InputError

NUM_THREADS = 8  # reading headers is limited by the disk or the network
MAX_FRAMES = 2**36 - 1  # a FLAC header has 36 bits for this number; libsndfile returns 2**63 - 1 if it is unknown


class ProblemKind(Enum):
    """Kinds of problems in a copy of the corpus; each value is a description."""

    NO_AUDIO = "transcript lines without audio"
    NO_TRANSCRIPT = "audio files without a transcript line"
    OUT_OF_PLACE = "files out of place"
    MALFORMED_LINE = "malformed transcript lines"
    UNREADABLE_TRANSCRIPT = "unreadable transcripts"
    UNREADABLE_AUDIO = "unreadable FLAC files"


# All other kinds are missing content, which is a warning.
DAMAGE = (ProblemKind.MALFORMED_LINE, ProblemKind.UNREADABLE_TRANSCRIPT, ProblemKind.UNREADABLE_AUDIO)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: its place (a file, or file:line) and the reason."""

    kind: ProblemKind
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


class Chapter(NamedTuple):
    """Content of a chapter folder."""

    utterances: list[Utterance]
    problems: list[Problem]


class Line(NamedTuple):
    """A transcript line: its place (file:line) and its text."""

    where: str
    text: str


def find_chapters(subset_dir: Path) -> tuple[list[Path], list[Problem]]:
    """Return the chapter folders of a subset in order, and problems for audio and transcripts outside these folders."""
    chapters: list[Path] = []
    stray: list[Path] = []
    for speaker in sorted(subset_dir.iterdir()):
        if not speaker.is_dir():
            stray.append(speaker)
            continue
        for chapter in sorted(speaker.iterdir()):
            (chapters if chapter.is_dir() else stray).append(chapter)
    reason = "audio and transcripts must lie in SUBSET/speaker/chapter/"
    problems = [
        Problem(ProblemKind.OUT_OF_PLACE, str(path), reason)
        for path in stray
        if path.name.endswith((".flac", ".trans.txt"))
    ]
    return chapters, problems


def read_chapters(chapters: list[Path]) -> Generator[Chapter, None, None]:
    """Read chapter folders in several threads; yield them in the given order."""
    executor = ThreadPoolExecutor(NUM_THREADS)
    try:
        yield from executor.map(read_chapter, chapters)
    finally:
        executor.shutdown(cancel_futures=True)  # so that after Ctrl-C no more chapters are read


def read_chapter(folder: Path) -> Chapter:
    """Read the transcript of a chapter and the headers of its audio; utterances are in the order of their ids."""
    speaker = folder.parent.name
    files = {path.name: path for path in sorted(folder.iterdir())}
    lines: dict[str, Line] = {}  # by utterance id
    utterances: list[Utterance] = []
    problems: list[Problem] = []
    for name, path in files.items():
        if name.endswith(".trans.txt"):
            problems += _read_transcript(path, f"{speaker}-{folder.name}-", lines)
    for name, path in files.items():
        if name.endswith(".flac"):
            if path.stem not in lines:
                problems.append(Problem(ProblemKind.NO_TRANSCRIPT, str(path), "no transcript line has its id"))
        elif not name.endswith(".trans.txt") and path.is_dir():
            problems.append(Problem(ProblemKind.OUT_OF_PLACE, str(path), "a chapter must hold files, no folders"))
    for utterance_id, line in sorted(lines.items()):
        audio = files.get(f"{utterance_id}.flac")
        if audio is None:
            problems.append(Problem(ProblemKind.NO_AUDIO, line.where, f"{utterance_id}.flac is not there"))
            continue
        try:
            duration = read_duration(audio)
        except InputError as error:
            problems.append(Problem(ProblemKind.UNREADABLE_AUDIO, str(audio), str(error)))
            continue
        utterances.append(Utterance(str(audio), duration, line.text, id=utterance_id, speaker=speaker))
    return Chapter(utterances, problems)


def read_duration(audio: Path) -> float:
    """Return the exact duration in seconds from the header alone; a truncated file is not detected.

    Raises:
        InputError: the file is not FLAC, or its header has no length.
    """
    try:
        info = soundfile.info(str(audio))
    except soundfile.LibsndfileError as error:
        raise InputError(f"must be a FLAC file; libsndfile says: {error.error_string}") from None
    if not 0 < info.frames <= MAX_FRAMES:
        raise InputError("its header must contain its length; it does not")
    return float(info.frames / info.samplerate)


def _read_transcript(path: Path, id_prefix: str, lines: dict[str, Line]) -> list[Problem]:
    """Add the transcript's lines (`ID TEXT`) to `lines`, and return its problems."""
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        reason = f"must be UTF-8 text; byte {error.start} is not"
        return [Problem(ProblemKind.UNREADABLE_TRANSCRIPT, str(path), reason)]
    except OSError as error:
        return [Problem(ProblemKind.UNREADABLE_TRANSCRIPT, str(path), f"cannot be read: {error.strerror}")]
    problems: list[Problem] = []
    for number, raw in enumerate(content.split("\n"), start=1):
        if not raw.strip():
            continue
        where = f"{path}:{number}"
        utterance_id, _, text = raw.strip().partition(" ")
        reason = ""
        if not re.fullmatch(re.escape(id_prefix) + r"\d+", utterance_id):
            reason = f"must begin with an id like {id_prefix}0001; got {utterance_id!r}"
        elif not text.strip():
            reason = f"must hold a text after the id; got {utterance_id!r} alone"
        elif utterance_id in lines:
            reason = f"ids must be unique; {utterance_id} is already in {lines[utterance_id].where}"
        if reason:
            problems.append(Problem(ProblemKind.MALFORMED_LINE, where, reason))
        else:
            lines[utterance_id] = Line(where, text.strip())
    return problems
