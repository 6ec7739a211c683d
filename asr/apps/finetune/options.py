"""Options of commands that read a source."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asr.apps.finetune.entry import SourceOptions


def add_source_options(add: Callable[..., object]) -> None:
    """Add the options of all formats; `add` is a parser's or a group's `add_argument`."""
    add(
        "--root",
        "--audio-root",
        type=Path,
        metavar="DIR",
        help="folder for relative audio paths, and for the audio of Label Studio (default: the folder of the source; "
        "Kaldi often needs another folder)",
    )
    add(
        "--text-column",
        metavar="NAME",
        help="column of the text, for table, audio_folder and parquet (default: text, transcription, sentence, ...)",
    )
    add(
        "--audio-column",
        metavar="NAME",
        help="column of the audio, for table and label_studio (default: audio, path, file_name, ...)",
    )
    add("--recordings", type=Path, metavar="FILE", help="recordings of lhotse's supervisions")
    add("--field", metavar="NAME", help="for label_studio: the text field, if there are several")
    add("--annotator", metavar="ID", help="for label_studio: the annotator whose text is used where texts differ")
    add("--newest", action="store_true", help="for label_studio: use the newest text where texts differ")
    add("--skip-bad", action="store_true", help="leave out utterances that cannot be read")


def source_options(
    options: argparse.Namespace, audio_dir: Path | None, on_audio_names: Callable[[set[str]], None] | None = None
) -> "SourceOptions":
    """Return the values of the options that `add_source_options` added.

    Args:
        options: parsed command line.
        audio_dir: output folder for audio that a source contains; None: not given.
        on_audio_names: called with the names below `audio_dir`, before anything is written.
    """
    from asr.apps.finetune.entry import SourceOptions  # imports torch

    return SourceOptions(
        root=options.root,
        audio_dir=audio_dir,
        on_audio_names=on_audio_names,
        text_column=options.text_column,
        audio_column=options.audio_column,
        recordings=options.recordings,
        field=options.field,
        annotator=options.annotator,
        newest=options.newest,
        skip_bad=options.skip_bad,
    )
