"""python -m asr.shards MANIFEST -o DIR: write a corpus into tar files of a size, with an index that training reads."""

import argparse
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from asr.cli.command import finite, progress_bar, run_command
from asr.errors import InputError
from asr.text.numbers import counted

MIN_MEGABYTES = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Write shards; started again, continue after the last complete one."""
    options = _parser().parse_args(arguments)
    if options.shard_megabytes < MIN_MEGABYTES:
        raise InputError(f"--shard-megabytes must be at least {MIN_MEGABYTES:g}; got {options.shard_megabytes:g}.")
    prefix = options.prefix or Path(options.manifests[0]).stem
    if not prefix or prefix != Path(prefix).name:
        raise InputError(f"--prefix must be the beginning of a file name; got {prefix!r}.")
    from asr.data.index import INDEX
    from asr.data.index_cache import IndexCache
    from asr.data.shard_writer import ShardSettings, ShardWriter
    from asr.data.utterances import Utterances
    from asr.storage.location import join, printable_url

    cache = IndexCache(options.index_dir)
    utterances = Utterances.joined([cache.utterances(manifest) for manifest in options.manifests])
    source = sha256(str(utterances.source).encode()).hexdigest()
    settings = ShardSettings(options.shard_megabytes, options.opus)
    writer = ShardWriter(options.output, prefix, settings, source)
    with progress_bar() as bar:
        task = bar.add_task("writing shards", total=len(utterances))
        num_shards = writer.write(utterances, lambda done: bar.advance(task, done))
    index = printable_url(join(options.output, INDEX))
    what = f"{counted(len(utterances), 'utterance')}, {utterances.hours:.2f} h, in {counted(num_shards, 'shard')}"
    print(f"{what}: train on them with 'corpus.train=[{index}]'")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m asr.shards",
        description="Write the audio of manifests into tar files (WebDataset's naming), and an index of their byte "
        "ranges, which asr.train and the other commands take in the place of a manifest. Files stay as they are; "
        "segments of longer recordings are cut without loss. Started again it continues after the last whole shard.",
    )
    parser.add_argument("manifests", nargs="+", metavar="MANIFEST", help="JSONL, one utterance a line; a path or a URL")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="a folder, or a URL: s3://BUCKET/FOLDER")
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
