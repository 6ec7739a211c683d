"""Write the manifests of the Free Spoken Digit Dataset: real speakers who say the ten digits.

    python -m recipes.digits.prepare --corpus-dir free-spoken-digit-dataset --output-dir manifests/digits
    python -m recipes.digits.prepare --corpus-dir DIR --output-dir manifests/digits --download

There are two protocols. In the official one, `test.jsonl` has the recordings with index 0 to 4 of every digit and
speaker; `train.jsonl` and `valid.jsonl` have the other recordings, so all speakers occur in training. In the second
protocol one speaker is left out: `without-<speaker>/test.jsonl` has all recordings of this speaker;
`without-<speaker>/train.jsonl` and `valid.jsonl` are the official manifests without this speaker.
"""

import argparse
import sys
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from asr.core.data.manifest import Utterance, write_manifest
from asr.errors import InputError
from recipes.command import READABLE, AddOption, run_recipe
from recipes.digits.download import URL, download
from recipes.digits.recordings import (
    SPEAKERS,
    WORDS,
    Findings,
    Recording,
    missing_recordings,
    read_recordings,
    recordings_dir,
)
from recipes.output import claim

TEST_INDICES = range(5)  # defined by FSDD's README; 5 to 49 are for training
VALID_INDICES = range(5, 10)  # chosen here from the indices for training
_MAX_NAMED = 10
RECIPE = "recipes.digits.prepare"

Splits = dict[str, list[Recording]]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe(
        RECIPE, __doc__, _add_options, _run, arguments, must=READABLE, interrupted="; run the same command again."
    )


def _run(options: argparse.Namespace) -> None:
    if options.download:
        download(options.corpus_dir)
    findings = read_recordings(recordings_dir(options.corpus_dir))
    _report_findings(findings)
    manifests = _all_manifests(findings.recordings)
    claim(options.output_dir, RECIPE, [f"{name}.jsonl" for name in manifests])
    for name, recordings in manifests.items():
        write_manifest(options.output_dir / f"{name}.jsonl", map(_utterance, recordings))
    _print_table(manifests)


def official(recordings: list[Recording]) -> Splits:
    """Return FSDD's official split, which is by index; each of its manifests has all speakers."""
    return {
        "train": [
            recording
            for recording in recordings
            if recording.index not in TEST_INDICES and recording.index not in VALID_INDICES
        ],
        "valid": [recording for recording in recordings if recording.index in VALID_INDICES],
        "test": [recording for recording in recordings if recording.index in TEST_INDICES],
    }


def leave_out(recordings: list[Recording], speaker: str) -> Splits:
    """Return the split whose test manifest has all recordings of one speaker, who is in no other manifest.

    Recordings of the official test manifest are not in train or valid of this split.
    """
    others = official([recording for recording in recordings if recording.speaker != speaker])
    return {
        "train": others["train"],
        "valid": others["valid"],
        "test": [recording for recording in recordings if recording.speaker == speaker],
    }


def _all_manifests(recordings: list[Recording]) -> Splits:
    """Return a dict from the name of each manifest to its recordings.

    Raises:
        InputError: a manifest would be empty.
    """
    manifests = official(recordings)
    speakers = sorted({recording.speaker for recording in recordings})
    if len(speakers) > 1:
        for speaker in speakers:
            splits = leave_out(recordings, speaker)
            manifests |= {f"without-{speaker}/{split}": split_recordings for split, split_recordings in splits.items()}
    else:
        _warn("to leave a speaker out, at least two are needed; only the official split is written.")
    for name, split_recordings in manifests.items():
        if not split_recordings:
            raise InputError(
                f"{name}.jsonl must hold at least one recording; found none. Index 0 to 4 is test, 5 to 9 valid, "
                "10 and more train."
            )
    return manifests


def _utterance(recording: Recording) -> Utterance:
    return Utterance(
        audio_filepath=str(recording.path),
        duration=recording.duration,
        text=WORDS[recording.digit],
        id=recording.path.stem,
        speaker=recording.speaker,
    )


def _report_findings(findings: Findings) -> None:
    """Report on stderr how the folder differs from the published corpus.

    Raises:
        InputError: a recording is damaged.
    """
    if findings.misnamed:
        _warn(f"{_named(findings.misnamed)} not named {{digit}}_{{speaker}}_{{index}}.wav; left out.")
    if findings.damaged:
        raise InputError(
            f"all recordings must be readable and not empty; {_named(findings.damaged)} not. No manifest was "
            "written. Restore them, or delete them to continue without them."
        )
    speakers = {recording.speaker for recording in findings.recordings}
    if strangers := sorted(speakers - set(SPEAKERS)):
        _warn(f"{_named(strangers)} not among the speakers of the published corpus; their recordings are used.")
    if missing := missing_recordings(findings.recordings):
        _warn(
            f"{_named(missing)} missing; the published corpus has them (10 digits, each 50 times by each of "
            f"{', '.join(SPEAKERS)}). Results on an incomplete corpus are not FSDD's."
        )
    for speaker in sorted(speakers):
        spoken = {recording.digit for recording in findings.recordings if recording.speaker == speaker}
        if missing_words := [WORDS[digit] for digit in range(len(WORDS)) if digit not in spoken]:
            _warn(f"{speaker} says no {', '.join(missing_words)}.")


def _named(names: list[str]) -> str:
    """Return "2 (a, b) are" or "1 (a) is": how many names there are, the first few of them, and the matching verb."""
    more = ", ..." if len(names) > _MAX_NAMED else ""
    return f"{len(names)} ({', '.join(names[:_MAX_NAMED])}{more}) {'is' if len(names) == 1 else 'are'}"


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _print_table(manifests: Splits) -> None:
    table = Table(box=SIMPLE)
    table.add_column("manifest", overflow="fold")
    for heading in ("utterances", "minutes", "speakers", "words", "distinct words"):
        table.add_column(heading, justify="right")
    for name, recordings in manifests.items():
        table.add_row(
            escape(name),
            f"{len(recordings):,}",
            f"{sum(recording.duration for recording in recordings) / 60:.1f}",
            str(len({recording.speaker for recording in recordings})),
            f"{len(recordings):,}",
            str(len({recording.digit for recording in recordings})),
        )
    width = None if sys.stdout.isatty() else 120  # no wrapping in a pipe
    Console(width=width).print(table)


def _add_options(add: AddOption) -> None:
    add(
        "--corpus-dir",
        type=Path,
        required=True,
        help="folder with {digit}_{speaker}_{index}.wav, directly or in recordings/",
    )
    add("--output-dir", type=Path, required=True, help="for {train,valid,test}.jsonl, also in without-<speaker>/")
    add("--download", action="store_true", help=f"fetch {URL} to --corpus-dir/recordings, unless this folder exists")


if __name__ == "__main__":
    sys.exit(main())
