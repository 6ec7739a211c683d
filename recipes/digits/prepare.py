"""Write the manifests of the Free Spoken Digit Dataset: real voices that say the ten digits.

    python -m recipes.digits.prepare --corpus-dir free-spoken-digit-dataset --output-dir manifests/digits
    python -m recipes.digits.prepare --corpus-dir DIR --output-dir manifests/digits --download

Two protocols. The official one: `test.jsonl` holds index 0 to 4 of every digit and speaker, `train.jsonl` and
`valid.jsonl` the others, so that all speakers are known. Leave one speaker out: `without-<speaker>/test.jsonl` holds
all recordings of one speaker, `without-<speaker>/train.jsonl` and `valid.jsonl` are the official ones without them.
"""

import argparse
import sys
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from asr.data.manifest import Utterance, write_manifest
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

TEST_INDICES = range(5)  # by FSDD's README; 5 to 49 are for training
VALID_INDICES = range(5, 10)  # held back from those, by us
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
    """FSDD's own split by index; every speaker is in each part."""
    return {
        "train": [one for one in recordings if one.index not in TEST_INDICES and one.index not in VALID_INDICES],
        "valid": [one for one in recordings if one.index in VALID_INDICES],
        "test": [one for one in recordings if one.index in TEST_INDICES],
    }


def leave_out(recordings: list[Recording], speaker: str) -> Splits:
    """The split in which one speaker is unknown until the test, which has all of their recordings.

    What is in the official test is in no train or valid here either: one rule for what may be learnt from.
    """
    others = official([one for one in recordings if one.speaker != speaker])
    return {
        "train": others["train"],
        "valid": others["valid"],
        "test": [one for one in recordings if one.speaker == speaker],
    }


def _all_manifests(recordings: list[Recording]) -> Splits:
    """The recordings of each manifest, by its name.

    Raises:
        InputError: for one that would be empty.
    """
    manifests = official(recordings)
    speakers = sorted({one.speaker for one in recordings})
    if len(speakers) > 1:
        for speaker in speakers:
            splits = leave_out(recordings, speaker)
            manifests |= {f"without-{speaker}/{split}": several for split, several in splits.items()}
    else:
        print(
            "warning: to leave one speaker out there must be two; only the official split is written.", file=sys.stderr
        )
    for name, several in manifests.items():
        if not several:
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
    """Say on stderr how the folder differs from the published corpus.

    Raises:
        InputError: if a recording is damaged.
    """
    if findings.misnamed:
        _warn(f"{_named(findings.misnamed)} not named {{digit}}_{{speaker}}_{{index}}.wav; left out.")
    if findings.damaged:
        raise InputError(
            f"all recordings must be readable and not empty; {_named(findings.damaged)} not. No manifest was "
            "written. Restore them, or delete them to go on without them."
        )
    found = {one.speaker for one in findings.recordings}
    if strangers := sorted(found - set(SPEAKERS)):
        _warn(f"{_named(strangers)} not among the speakers of the published corpus; kept.")
    if missing := missing_recordings(findings.recordings):
        _warn(
            f"{_named(missing)} missing from what is published (10 digits, each said 50 times by each of "
            f"{', '.join(SPEAKERS)}). Results on the rest are not FSDD's."
        )
    for speaker in sorted(found):
        said = {one.digit for one in findings.recordings if one.speaker == speaker}
        if unsaid := [WORDS[digit] for digit in range(len(WORDS)) if digit not in said]:
            _warn(f"{speaker} says no {', '.join(unsaid)}.")


def _named(names: list[str]) -> str:
    """How many there are, the first of them by name, and the verb that goes with them."""
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
            f"{sum(one.duration for one in recordings) / 60:.1f}",
            str(len({one.speaker for one in recordings})),
            f"{len(recordings):,}",
            str(len({one.digit for one in recordings})),
        )
    width = None if sys.stdout.isatty() else 120  # a pipe has no width: do not wrap
    Console(width=width).print(table)


def _add_options(add: AddOption) -> None:
    add("--corpus-dir", type=Path, required=True, help="holds {digit}_{speaker}_{index}.wav, itself or in recordings/")
    add("--output-dir", type=Path, required=True, help="for {train,valid,test}.jsonl and without-<speaker>/ the same")
    add("--download", action="store_true", help=f"first fetch {URL} to --corpus-dir/recordings, if that is not there")


if __name__ == "__main__":
    sys.exit(main())
