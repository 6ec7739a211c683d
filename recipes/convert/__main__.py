"""Convert a corpus in another toolkit's format to a manifest.

    python -m recipes.convert auto corpus train.jsonl
    python -m recipes.convert manifest train_manifest.json train.jsonl
    python -m recipes.convert kaldi data/train train.jsonl
    python -m recipes.convert label_studio export.json train.jsonl --audio-root media/upload
    python -m recipes.convert common_voice cv-corpus/en/validated.tsv train.jsonl
    python -m recipes.convert ljspeech LJSpeech-1.1 train.jsonl
    python -m recipes.convert audio_folder corpus/train train.jsonl
    python -m recipes.convert librispeech LibriSpeech/dev-clean train.jsonl
    python -m recipes.convert table speech.csv train.jsonl
    python -m recipes.convert text_files corpus train.jsonl
    python -m recipes.convert parquet corpus/data train.jsonl --audio-dir audio
    python -m recipes.convert lhotse cuts.jsonl.gz train.jsonl
    python -m recipes.convert lhotse supervisions.jsonl.gz train.jsonl --recordings recordings.jsonl.gz

With auto, the format is recognised by the names and first lines of files. Manifests of NeMo are manifests; nemo is
another name of this format. Manifests refer to the existing audio files; only the audio in Parquet files is copied, to
--audio-dir. Lines that cannot be converted are listed with file and line number. If there are such lines, no manifest
is written; with --skip-bad the manifest is written without these lines. Texts are not changed: asr.train normalises
them.
"""

import argparse
import sys
from pathlib import Path

from asr.apps.finetune.collect import collect
from asr.apps.finetune.formats import FORMATS
from asr.apps.finetune.options import add_source_options, source_options
from asr.base.system.files import check_output
from asr.base.text.printable import printable
from recipes.command import AddOption, complain, run_recipe
from recipes.convert.manifests import write_converted
from recipes.output import claim

AUTO = "auto"
OTHER_NAMES = {AUTO: None, "nemo": "manifest"}  # other values of FORMAT, and the format of each; None: recognised


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe("recipes.convert", __doc__, _add_options, _convert, arguments)


def _convert(options: argparse.Namespace) -> None:
    inputs = [path for path in (options.source, options.recordings) if path is not None]
    check_output("MANIFEST", options.manifest, "train.jsonl", inputs=inputs)
    collected = collect(
        options.source,
        source_options(
            options,
            options.audio_dir,
            lambda names: claim(options.audio_dir, "recipes.convert", names, "--audio-dir"),
        ),
        OTHER_NAMES.get(options.format, options.format),
        complain,
        format_option="FORMAT",
    )
    write_converted({options.manifest: collected.utterances})
    print(printable(collected.description))  # the last line says what was left out


def _add_options(add: AddOption) -> None:
    names = (*FORMATS, *OTHER_NAMES)
    add("format", choices=names, metavar="FORMAT", help=f"one of {', '.join(names)}")
    add("source", type=Path, metavar="SOURCE", help="file or folder, as above")
    add("manifest", type=Path, metavar="MANIFEST", help="output file, JSONL")
    add("--audio-dir", type=Path, metavar="DIR", help="output folder for the audio of Parquet files")
    add_source_options(add)


if __name__ == "__main__":
    sys.exit(main())
