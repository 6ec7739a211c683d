"""Make a manifest of a corpus in another toolkit's format.

    python -m recipes.convert kaldi data/train train.jsonl
    python -m recipes.convert common_voice cv-corpus/en/validated.tsv train.jsonl
    python -m recipes.convert audio_folder corpus/train train.jsonl
    python -m recipes.convert parquet corpus/data train.jsonl --audio-dir audio
    python -m recipes.convert nemo train_manifest.json train.jsonl
    python -m recipes.convert lhotse cuts.jsonl.gz train.jsonl
    python -m recipes.convert lhotse supervisions.jsonl.gz train.jsonl --recordings recordings.jsonl.gz
    python -m recipes.convert ljspeech LJSpeech-1.1 train.jsonl

Audio stays where it is, but for Parquet files, which hold it. What cannot be taken over is named by file and line, and
there is no manifest then, unless --skip-bad leaves it out. Texts stay as they are: asr.train normalises them.
"""

import argparse
import sys
from pathlib import Path

from asr.system.files import check_output
from recipes.command import AddOption, run_recipe
from recipes.convert import audio_folder, common_voice, kaldi, lhotse, ljspeech, nemo, parquet
from recipes.convert.entry import Options, Problems, Reader
from recipes.convert.manifests import taken_over, write_converted

FORMATS: dict[str, Reader] = {
    "kaldi": kaldi.read,
    "common_voice": common_voice.read,
    "audio_folder": audio_folder.read,
    "parquet": parquet.read,
    "nemo": nemo.read,
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
    given = Options(options.root, options.audio_dir, options.text_column, options.recordings)
    entries = FORMATS[options.format](options.source, given, problems)
    write_converted({options.manifest: taken_over(options.source, entries, problems, skip_bad=options.skip_bad)})


def _add_options(add: AddOption) -> None:
    add("format", choices=FORMATS, metavar="FORMAT", help=f"one of {', '.join(FORMATS)}")
    add("source", type=Path, metavar="SOURCE", help="file or folder, as above")
    add("manifest", type=Path, metavar="MANIFEST", help="to write, JSONL")
    add(
        "--root",
        type=Path,
        metavar="DIR",
        help="of relative audio paths (that of SOURCE; Kaldi's often are of another)",
    )
    add("--audio-dir", type=Path, metavar="DIR", help="gets the audio of Parquet files")
    add("--text-column", metavar="NAME", help="of audio_folder and parquet (text, transcription, sentence, ...)")
    add("--recordings", type=Path, metavar="FILE", help="of lhotse's supervisions")
    add("--skip-bad", action="store_true", help="leave out what cannot be taken over")


if __name__ == "__main__":
    sys.exit(main())
