"""Write the manifests of LJSpeech (Ito and Johnson 2017): 24 hours of speech by one reader, from seven books.

    python -m recipes.ljspeech.prepare --corpus-dir LJSpeech-1.1 --output-dir data/ljspeech
    python -m recipes.ljspeech.prepare --corpus-dir LJSpeech-1.1 --output-dir data/ljspeech --download

The corpus has no official split. This recipe uses chapter LJ050 for test, LJ049 for validation and the others for
training, so no text continues from one split to another. An incomplete copy of the corpus is accepted and reported.
"""

import argparse
import sys
from pathlib import Path

from asr.apps.finetune.collect import collect
from asr.apps.finetune.entry import SourceOptions
from asr.base.text.printable import printable
from asr.core.data.manifest import Utterance
from asr.errors import InputError
from recipes.command import AddOption, complain, run_recipe
from recipes.convert.manifests import write_converted
from recipes.librispeech.download import (
    Archive,
    checked_url,
    fetch_and_unpack_all,
    say,
)
from recipes.librispeech.unpack import discard_unpacking, unpack_corpus
from recipes.output import claim

HOME = "https://data.keithito.com/data/speech"
# Sources of size, MD5 and number of clips: keithito.com/LJ-Speech-Dataset, and toolkits that verify the archive.
ARCHIVE, ARCHIVE_BYTES, MD5 = "LJSpeech-1.1.tar.bz2", 2748572632, "c4763be9595ddfa79c2fc6eaeb3b6c8e"
NUM_UTTERANCES = 13100
UNPACKED_PER_BYTE = 1.4
HELD_OUT = {"LJ049": "valid", "LJ050": "test"}  # the split of each chapter that is not for training


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe("recipes.ljspeech.prepare", __doc__, _add_options, _prepare, arguments)


def download(corpus_dir: Path, base_url: str, *, keep_archives: bool) -> None:
    """Download the archive and unpack it to `corpus_dir`, unless this folder exists.

    Raises:
        InputError: the archive cannot be downloaded or has the wrong checksum, or the disk is too small.
    """
    if corpus_dir.exists():
        say(f"{corpus_dir}: exists already; not fetched.")
        return
    corpus_dir.parent.mkdir(parents=True, exist_ok=True)
    discard_unpacking(corpus_dir.parent, corpus_dir.name)
    archive = Archive(f"{base_url}/{ARCHIVE}", corpus_dir.with_name(ARCHIVE), ARCHIVE_BYTES, MD5)
    fetch_and_unpack_all(
        {corpus_dir: archive},
        lambda archive, folder, progress: unpack_corpus(archive, folder, "*/metadata.csv", progress),
        unpacked_per_byte=UNPACKED_PER_BYTE,
        keep_archives=keep_archives,
        advice="Make room, or give another --corpus-dir.",
    )


def split(utterances: list[Utterance]) -> dict[str, list[Utterance]]:
    """Split by chapter.

    Raises:
        InputError: a split is empty.
    """
    splits: dict[str, list[Utterance]] = {"train": [], "valid": [], "test": []}
    for utterance in utterances:
        splits[HELD_OUT.get(utterance.id.partition("-")[0], "train")].append(utterance)
    if empty := [name for name, split_utterances in splits.items() if not split_utterances]:
        chapters = f"chapters {' and '.join(HELD_OUT)}, and others"
        advice = "For a manifest of the existing clips: python -m recipes.convert ljspeech"
        raise InputError(f"LJSpeech must have {chapters}; nothing was found for {', '.join(empty)}. {advice}.")
    return splits


def _prepare(options: argparse.Namespace) -> None:
    if options.download:
        base_url = checked_url(options.mirror or HOME)
        download(options.corpus_dir, base_url, keep_archives=options.keep_archives)
    elif options.mirror or options.keep_archives:
        raise InputError("--mirror and --keep-archives need --download; it was not given.")
    collected = collect(options.corpus_dir, SourceOptions(skip_bad=options.skip_bad), "ljspeech", complain)
    print(printable(collected.description))
    utterances = collected.utterances
    splits = split(utterances)
    claim(options.output_dir, "recipes.ljspeech.prepare", [f"{name}.jsonl" for name in splits])
    write_converted(
        {options.output_dir / f"{name}.jsonl": split_utterances for name, split_utterances in splits.items()}
    )
    state = "complete" if len(utterances) == NUM_UTTERANCES else "incomplete, or not the published corpus"
    print(f"LJSpeech: {state}: {len(utterances):,} utterances; the published corpus has {NUM_UTTERANCES:,}.")


def _add_options(add: AddOption) -> None:
    add("--corpus-dir", type=Path, required=True, metavar="DIR", help="folder of metadata.csv and wavs")
    add("--output-dir", type=Path, required=True, metavar="DIR", help="for train.jsonl, valid.jsonl and test.jsonl")
    add("--skip-bad", action="store_true", help="leave out lines that cannot be converted")
    add("--download", action="store_true", help=f"first fetch {HOME}/{ARCHIVE} (2.7 GB), unless --corpus-dir exists")
    add("--mirror", metavar="URL", help="for --download: base URL of another copy")
    add("--keep-archives", action="store_true", help="for --download: do not remove the unpacked archive")


if __name__ == "__main__":
    sys.exit(main())
