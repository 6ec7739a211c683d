"""python -m asr.shards MANIFEST -o DIR: write a corpus into tar files of fixed size, with an index for training."""

import argparse
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from asr.base.settings.rule import LABELS
from asr.base.system.files import check_apart
from asr.base.text.numbers import counted, finite
from asr.core.cli.command import progress_bar, run_command
from asr.core.cli.parser import CommandParser, path_or_url
from asr.errors import InputError

if TYPE_CHECKING:
    from asr.core.data.manifest import Utterance

MIN_MEGABYTES = 1.0
PARQUET_SUFFIX = ".parquet"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write shards, or index existing shards; the same command continues after the last complete shard."""
    options = _parser().parse_args(arguments)
    options.output = str(options.output)
    LABELS.check("--label", options.label)
    if options.index_only:
        return _index(options)
    if options.nemo_manifest is not None:
        raise InputError("--nemo-manifest needs --index-only, because it describes existing shards.")
    return _write(options)


def _write(options: argparse.Namespace) -> int:
    if options.shard_megabytes < MIN_MEGABYTES:
        raise InputError(f"--shard-megabytes must be at least {MIN_MEGABYTES:g}; got {options.shard_megabytes:g}.")
    prefix = options.prefix or Path(options.inputs[0]).stem
    if not prefix or prefix != Path(prefix).name:
        raise InputError(f"--prefix must be the beginning of a file name; got {prefix!r}.")
    from asr.apps.shards.writer import ShardSettings, ShardWriter
    from asr.base.storage.location import join, printable_url
    from asr.core.data.index import INDEX
    from asr.core.data.index_cache import IndexCache
    from asr.core.data.utterances import Utterances

    check_apart("--output", Path(join(options.output, INDEX)), options.inputs)
    cache = IndexCache(options.index_dir)
    labels: list[str] = options.label
    utterances = Utterances.joined([cache.utterances(manifest, labels) for manifest in options.inputs])
    source = sha256(" ".join([str(utterances.source), *labels]).encode()).hexdigest()
    writer = ShardWriter(options.output, prefix, ShardSettings(options.shard_megabytes, options.opus), source)
    with progress_bar() as bar:
        task = bar.add_task("writing shards", total=len(utterances))
        num_shards = writer.write(utterances, lambda done: bar.advance(task, done))
    index = printable_url(join(options.output, INDEX))
    counts = f"{counted(len(utterances), 'utterance')}, {utterances.hours:.2f} h, in {counted(num_shards, 'shard')}"
    print(f"{counts}: train on them with {_training_on(index)}")
    return 0


def _index(options: argparse.Namespace) -> int:
    from asr.apps.shards.foreign import write_foreign_index
    from asr.base.storage.location import printable_url
    from asr.base.storage.patterns import expanded
    from asr.core.data.index_cache import INDEX_SUFFIX

    if not options.output.endswith(INDEX_SUFFIX):
        raise InputError(f"--output must be the path of the index, ending in {INDEX_SUFFIX}; got {options.output!r}.")
    shards = [shard for pattern in options.inputs for shard in expanded(pattern)]
    check_apart("--output", Path(options.output), shards)
    with progress_bar() as bar:
        task = bar.add_task("reading shards", total=len(shards))
        utterances = _foreign_utterances(options, shards, partial(bar.advance, task))
        number = write_foreign_index(options.output, shards, utterances, options.label)
    index = printable_url(options.output)
    print(f"{counted(number, 'utterance')} in {counted(len(shards), 'shard')}: train with {_training_on(index)}")
    return 0


def _training_on(index: str) -> str:
    from asr.core.training.overrides import setting

    return shlex.quote(setting("corpus.train", [index]))


def _foreign_utterances(
    options: argparse.Namespace, shards: list[str], on_shard: Callable[[], object]
) -> "Iterator[Utterance]":
    """Read the shards with the reader of their format."""
    from asr.apps.shards.foreign import index_nemo, index_webdataset
    from asr.base.storage.location import printable_url

    for shard in shards:
        if shard.endswith(PARQUET_SUFFIX):
            cure = "Convert Parquet files first: python -m recipes.convert parquet"
            raise InputError(f"--index-only needs tar files; got {printable_url(shard)}. {cure}.")
    if options.nemo_manifest is not None:
        return index_nemo(shards, options.nemo_manifest, on_shard, options.label)
    return index_webdataset(shards, on_shard, options.label)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m asr.shards",
        description="Write the audio of manifests into tar files (WebDataset's naming), and an index of byte ranges "
        "that asr.train and other commands accept instead of a manifest. Audio files are copied unchanged; segments of "
        "longer recordings are cut losslessly. The same command continues after the last complete shard.",
    )
    inputs = "path or URL: JSONL, one utterance per line; with --index-only: shards, also with {000..012} and *"
    parser.add_argument("inputs", nargs="+", metavar="MANIFEST", help=inputs)
    output = "folder, or URL such as s3://BUCKET/FOLDER; with --index-only: path of the index, index.arrow"
    parser.add_argument("-o", "--output", type=path_or_url, required=True, metavar="DIR", help=output)
    index_only = "only index existing tar files of WebDataset or NeMo"
    parser.add_argument("--index-only", action="store_true", help=index_only)
    nemo = "manifest of NeMo's tarred audio; give the tar files in the order of its shard_id"
    parser.add_argument("--nemo-manifest", metavar="FILE", help=nemo)
    parser.add_argument(
        "--prefix", metavar="NAME", help="prefix of the shards' names (default: the first manifest's name)"
    )
    megabytes = "minimum size of a complete shard (default 1000)"
    parser.add_argument("--shard-megabytes", type=finite, default=1000.0, metavar="MB", help=megabytes)
    label = "also store this key of the manifest lines, such as language, as a label; may be repeated"
    parser.add_argument("--label", action="append", default=[], metavar="KEY", help=label)
    parser.add_argument("--opus", action="store_true", help="encode as Ogg Opus: smaller, but lossy")
    parser.add_argument("--index-dir", metavar="DIR", help="folder of manifests' indexes (default: ~/.cache/asr/index)")
    return parser


if __name__ == "__main__":
    run_command(main)
