"""Read a folder of spoken digits, whose file names are {digit}_{speaker}_{index}.wav."""

import re
from dataclasses import dataclass
from pathlib import Path

import soundfile

from asr.errors import InputError

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")  # the speakers of version 1.0.10
INDICES = range(50)  # indices of the recordings of each digit by each speaker
_NAME = re.compile(r"([0-9])_([A-Za-z][A-Za-z0-9-]*)_(0|[1-9][0-9]*)\.wav")


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording of a digit; `index` counts the recordings of this digit by this speaker."""

    path: Path
    digit: int
    speaker: str
    index: int
    duration: float


@dataclass(frozen=True, slots=True)
class Findings:
    """Content of a folder: its recordings, the names of damaged recordings, and the names of other files."""

    recordings: list[Recording]
    misnamed: list[str]
    damaged: list[str]


def recordings_dir(corpus_dir: Path) -> Path:
    """Return the folder of the recordings: `corpus_dir/recordings`, or `corpus_dir` itself.

    Raises:
        InputError: neither folder has a WAV file.
    """
    for folder in (corpus_dir / "recordings", corpus_dir):
        if any(folder.glob("*.wav")):
            return folder
    raise InputError(
        f"--corpus-dir must hold {{digit}}_{{speaker}}_{{index}}.wav, directly or in recordings/; {corpus_dir} holds "
        "no .wav file. Give another folder, or fetch the corpus with --download."
    )


def read_recordings(folder: Path) -> Findings:
    """Read the names and headers of all files in a folder."""
    findings = Findings([], [], [])
    for path in sorted(folder.iterdir()):
        name = _NAME.fullmatch(path.name)
        if name is None:
            findings.misnamed.append(path.name)
            continue
        duration = _duration(path)
        if duration == 0:
            findings.damaged.append(path.name)
        else:
            findings.recordings.append(Recording(path, int(name[1]), name[2], int(name[3]), duration))
    return findings


def missing_recordings(recordings: list[Recording]) -> list[str]:
    """Return the names of the published recordings that are missing."""
    present = {(recording.digit, recording.speaker, recording.index) for recording in recordings}
    return [
        f"{digit}_{speaker}_{index}.wav"
        for speaker in SPEAKERS
        for digit in range(len(WORDS))
        for index in INDICES
        if (digit, speaker, index) not in present
    ]


def _duration(path: Path) -> float:
    """Return the duration in seconds; 0 if the file has no samples or is not audio."""
    try:
        info = soundfile.info(str(path))
    except soundfile.LibsndfileError:
        return 0.0
    return info.frames / info.samplerate
