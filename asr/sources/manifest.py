"""NeMo's manifests, which have the same keys as the manifests of asr; NeMo's tarred audio is refused."""

import re
from collections.abc import Iterator
from pathlib import Path

from asr.data.manifest import named_lines, parse_object, parse_utterance
from asr.errors import InputError
from asr.sources.entry import Problems, SourceEntry, SourceOptions

CHANNEL_KEYS = ("channel_selector", "target_channel", "channel")
SHARDS = re.compile(r"_OP_|_CL_|\.tar\b")


def read(source: Path, options: SourceOptions, problems: Problems) -> Iterator[SourceEntry]:
    """Read a manifest."""
    root = options.root or source.parent
    for where, line in named_lines(source, "a manifest of NeMo"):
        try:
            row = parse_object(line, where)
            if "shard_id" in row or SHARDS.search(str(row.get("audio_filepath"))):
                raise InputError(f"{where}: audio must be in files; this manifest names tar files. Unpack them first.")
            utterance = parse_utterance(row, where, root)
        except InputError as error:
            problems.messages.append(str(error))
            continue
        yield SourceEntry(
            where,
            Path(utterance.audio_filepath),
            utterance.text,
            utterance.id,
            utterance.speaker,
            utterance.offset,
            utterance.duration,
            channels=tuple(row[key] for key in CHANNEL_KEYS if row.get(key) not in (None, "average"))[:1],
        )
