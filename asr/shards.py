"""python -m asr.shards MANIFEST -o DIR: write a corpus into tar files of a size, with an index that training reads."""

import argparse
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

from asr.cli.command import finite, progress_bar, run_command
from asr.errors import InputError
from asr.text.numbers import counted

MIN_MEGABYTES = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Write shards, or index those that are there; writing, started again, continues after the last complete one."""
    options = _parser().parse_args(arguments)
    if options.index_only:
        return _index(options)
    if options.nemo_manifest is not None:
        raise InputError("--nemo-manifest must go with --index-only: it names what tar files that are there hold.")
    return _write(options)


def _write(options: argparse.Namespace) -> int:
    if options.shard_megabytes < MIN_MEGABYTES:
        raise InputError(f"--shard-megabytes must be at least {MIN_MEGABYTES:g}; got {options.shard_megabytes:g}.")
    prefix = options.prefix or Path(options.inputs[0]).stem
    if not prefix or prefix != Path(prefix).name:
        raise InputError(f"--prefix must be the beginning of a file name; got {prefix!r}.")
    from asr.data.index import INDEX
    from asr.data.index_cache import IndexCache
    from asr.data.shard_writer import ShardSettings, ShardWriter
    from asr.data.utterances import Utterances
    from asr.storage.location import join, printable_url

    cache = IndexCache(options.index_dir)
    utterances = Utterances.joined([cache.utterances(manifest) for manifest in options.inputs])
    source = sha256(str(utterances.source).encode()).hexdigest()
    writer = ShardWriter(options.output, prefix, ShardSettings(options.shard_megabytes, options.opus), source)
    with progress_bar() as bar:
        task = bar.add_task("writing shards", total=len(utterances))
        num_shards = writer.write(utterances, lambda done: bar.advance(task, done))
    index = printable_url(join(options.output, INDEX))
    counts = f"{counted(len(utterances), 'utterance')}, {utterances.hours:.2f} h, in {counted(num_shards, 'shard')}"
    print(f"{counts}: train on them with 'corpus.train=[{index}]'")
    return 0


def _index(options: argparse.Namespace) -> int:
    from asr.data.foreign_shards import index_nemo, index_webdataset, write_foreign_index
    from asr.data.index_cache import INDEX_SUFFIX
    from asr.storage.location import printable_url
    from asr.storage.patterns import expanded

    if not options.output.endswith(INDEX_SUFFIX):
        raise InputError(f"--output must be the index, a name that ends in {INDEX_SUFFIX}; got {options.output!r}.")
    shards = [shard for pattern in options.inputs for shard in expanded(pattern)]
    with progress_bar() as bar:
        task = bar.add_task("reading shards", total=len(shards))
        manifest, advance = options.nemo_manifest, partial(bar.advance, task)
        utterances = index_webdataset(shards, advance) if manifest is None else index_nemo(shards, manifest, advance)
        number = write_foreign_index(options.output, shards, utterances)
    index = printable_url(options.output)
    print(f"{counted(number, 'utterance')} in {counted(len(shards), 'shard')}: train with 'corpus.train=[{index}]'")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m asr.shards",
        description="Write the audio of manifests into tar files (WebDataset's naming), and an index of their byte "
        "ranges, which asr.train and the other commands take in the place of a manifest. Files stay as they are; "
        "segments of longer recordings are cut without loss. Started again it continues after the last whole shard.",
    )
    inputs = "JSONL, one utterance a line, as path or URL; with --index-only tar files, also with {000..012} and *"
    parser.add_argument("inputs", nargs="+", metavar="MANIFEST", help=inputs)
    output = "a folder, or a URL: s3://BUCKET/FOLDER; with --index-only the index, beside the tar files: index.arrow"
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help=output)
    parser.add_argument("--index-only", action="store_true", help="index tar files of WebDataset or NeMo; copy nothing")
    nemo = "manifest of NeMo's tarred audio; the tar files are given in the order of its shard_id"
    parser.add_argument("--nemo-manifest", metavar="FILE", help=nemo)
    parser.add_argument("--prefix", metavar="NAME", help="of the shards' names (default: the first manifest's name)")
    megabytes = "a shard is complete when it is this large (default 1000)"
    parser.add_argument("--shard-megabytes", type=finite, default=1000.0, metavar="MB", help=megabytes)
    parser.add_argument(
        "--opus", action="store_true", help="encode as Ogg Opus: smaller, and no longer the same samples"
    )
    parser.add_argument("--index-dir", metavar="DIR", help="keeps indexes of manifests (default: ~/.cache/asr/index)")
    return parser


if __name__ == "__main__":
    run_command(main)
