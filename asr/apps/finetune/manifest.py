"""Manifests of asr, and NeMo's, which have the same keys; NeMo's tarred audio is refused."""

import re
from collections.abc import Iterator
from pathlib import Path

from asr.apps.finetune.entry import SourceEntry, SourceOptions, SourceReport
from asr.apps.finetune.rows import first_object
from asr.core.data.manifest import named_lines, parse_object, parse_utterance
from asr.errors import InputError

CHANNEL_KEYS = ("channel_selector", "target_channel", "channel")
PURPOSES = {"audio": "audio_filepath"} | {key: key for key in ("text", "offset", "duration", "speaker", "id")}
SHARDS = re.compile(r"_OP_|_CL_|\.tar\b")


def accepts(path: Path) -> bool:
    """Return whether the first line of a file has the key audio_filepath."""
    return "audio_filepath" in first_object(path)


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read a manifest."""
    root = options.root or source.parent
    for where, line in named_lines(source, "a manifest"):
        try:
            row = parse_object(line, where)
            if "shard_id" in row or SHARDS.search(str(row.get("audio_filepath"))):
                raise InputError(f"{where}: audio must be in files; this manifest names tar files. Unpack them first.")
            utterance = parse_utterance(row, where, root)
        except InputError as error:
            report.problems.append(str(error))
            continue
        report.name_columns({purpose: key for purpose, key in PURPOSES.items() if key in row}, row)
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
