"""Write the manifests of a language of Common Voice (Ardila et al. 2020): many speakers with their own microphones.

    python -m recipes.common_voice.prepare --corpus-dir cv-corpus/en --output-dir data/common_voice
    python -m recipes.common_voice.prepare --corpus-dir cv-corpus/en --output-dir data/common_voice \\
        --archive cv-corpus-17.0-2024-03-15-en.tar.gz

Download the archive from https://commonvoice.mozilla.org/datasets; this needs an account. The page shows the SHA-256 of
the archive; with --sha256 the archive is verified before it is unpacked. The splits are the official ones (train.tsv,
dev.tsv and test.tsv), which share no speakers. Texts keep case and punctuation; asr.train normalises them.
"""

import argparse
import hashlib
import sys
from pathlib import Path

from asr.apps.finetune.collect import collect
from asr.apps.finetune.entry import SourceOptions
from asr.base.text.printable import printable
from asr.errors import InputError
from recipes.command import AddOption, complain, run_recipe
from recipes.convert.manifests import write_converted
from recipes.librispeech.download import say, transfer_progress
from recipes.librispeech.unpack import unpack_corpus
from recipes.output import claim

SPLITS = ("train", "dev", "test")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe("recipes.common_voice.prepare", __doc__, _add_options, _prepare, arguments)


def unpack(archive: Path, corpus_dir: Path, sha256: str | None) -> None:
    """Unpack an archive to `corpus_dir`, unless this folder exists.

    Raises:
        InputError: the file is not an archive of Common Voice, or has another checksum.
    """
    if corpus_dir.exists():
        say(f"{corpus_dir}: exists already; nothing was unpacked.")
        return
    if not archive.is_file():
        raise InputError(f"--archive must be a tar.gz of Common Voice; {archive} is not a file.")
    with transfer_progress() as progress:
        if sha256 is not None:
            with progress.open(archive, "rb", description=f"verifying {archive.name}") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]  # it has readinto
            if digest != sha256.lower():
                raise InputError(f"{archive}: must have the SHA-256 {sha256.lower()}; it has {digest}. Fetch it again.")
        unpack_corpus(archive, corpus_dir, "*/*/train.tsv", progress)
    say(f"{corpus_dir}: {'verified and ' if sha256 else ''}unpacked; {archive} was not removed.")


def _prepare(options: argparse.Namespace) -> None:
    if options.archive is not None:
        unpack(options.archive, options.corpus_dir, options.sha256)
    elif options.sha256 is not None:
        raise InputError("--sha256 needs --archive; it was not given.")
    manifests = {}
    for name in SPLITS:
        table = options.corpus_dir / f"{name}.tsv"
        collected = collect(table, SourceOptions(skip_bad=options.skip_bad), "common_voice", complain)
        print(printable(collected.description))
        manifests[options.output_dir / f"{name}.jsonl"] = collected.utterances
    claim(options.output_dir, "recipes.common_voice.prepare", [manifest.name for manifest in manifests])
    write_converted(manifests)


def _add_options(add: AddOption) -> None:
    add("--corpus-dir", type=Path, required=True, metavar="DIR", help="folder of a language, with train.tsv and clips")
    add("--output-dir", type=Path, required=True, metavar="DIR", help="for train.jsonl, dev.jsonl and test.jsonl")
    add("--archive", type=Path, metavar="FILE", help="archive to unpack to --corpus-dir, unless this folder exists")
    add("--sha256", metavar="SUM", help="SHA-256 of the archive, as on its website")
    add("--skip-bad", action="store_true", help="leave out lines that cannot be converted")


if __name__ == "__main__":
    sys.exit(main())
