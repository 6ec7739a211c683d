"""Convert a corpus in another toolkit's format to a manifest.

    python -m recipes.convert kaldi data/train train.jsonl
    python -m recipes.convert common_voice cv-corpus/en/validated.tsv train.jsonl
    python -m recipes.convert audio_folder corpus/train train.jsonl
    python -m recipes.convert parquet corpus/data train.jsonl --audio-dir audio
    python -m recipes.convert nemo train_manifest.json train.jsonl
    python -m recipes.convert lhotse cuts.jsonl.gz train.jsonl
    python -m recipes.convert lhotse supervisions.jsonl.gz train.jsonl --recordings recordings.jsonl.gz
    python -m recipes.convert ljspeech LJSpeech-1.1 train.jsonl

Manifests refer to the existing audio files; only the audio in Parquet files is copied, to --audio-dir. Lines that
cannot be converted are listed with file and line number. If there are such lines, no manifest is written; with
--skip-bad the manifest is written without these lines. Texts are not changed: asr.train normalises them.
"""

import argparse
import sys
from pathlib import Path

from asr.sources import audio_folder, common_voice, kaldi, lhotse, ljspeech, manifest, parquet
from asr.sources.entry import Problems, Reader, SourceOptions
from asr.system.files import check_output
from recipes.command import AddOption, run_recipe
from recipes.convert.manifests import taken_over, write_converted
from recipes.output import claim

FORMATS: dict[str, Reader] = {
    "kaldi": kaldi.read,
    "common_voice": common_voice.read,
    "audio_folder": audio_folder.read,
    "parquet": parquet.read,
    "nemo": manifest.read,
    "lhotse": lhotse.read,
    "ljspeech": ljspeech.read,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe("recipes.convert", __doc__, _add_options, _convert, arguments)


def _convert(options: argparse.Namespace) -> None:
    inputs = [path for path in (options.source, options.recordings) if path is not None]
    check_output("MANIFEST", options.manifest, "train.jsonl", inputs=inputs)
    problems = Problems()
    given = SourceOptions(
        options.root,
        options.audio_dir,
        lambda names: claim(options.audio_dir, "recipes.convert", names, "--audio-dir"),
        options.text_column,
        options.recordings,
    )
    entries = FORMATS[options.format](options.source, given, problems)
    write_converted({options.manifest: taken_over(options.source, entries, problems, skip_bad=options.skip_bad)})


def _add_options(add: AddOption) -> None:
    add("format", choices=FORMATS, metavar="FORMAT", help=f"one of {', '.join(FORMATS)}")
    add("source", type=Path, metavar="SOURCE", help="file or folder, as above")
    add("manifest", type=Path, metavar="MANIFEST", help="output file, JSONL")
    add(
        "--root",
        type=Path,
        metavar="DIR",
        help="folder for relative audio paths (default: the folder of SOURCE; Kaldi often needs another folder)",
    )
    add("--audio-dir", type=Path, metavar="DIR", help="output folder for the audio of Parquet files")
    add(
        "--text-column",
        metavar="NAME",
        help="column of the text, for audio_folder and parquet (default: text, transcription, sentence, ...)",
    )
    add("--recordings", type=Path, metavar="FILE", help="recordings of lhotse's supervisions")
    add("--skip-bad", action="store_true", help="leave out lines that cannot be converted")


if __name__ == "__main__":
    sys.exit(main())
