"""Manifests of asr, and NeMo's, which have the same keys; NeMo's tarred audio is refused."""

import re
from collections.abc import Iterator
from pathlib import Path

from asr.apps.finetune.columns import channel_columns, channels_of, check_times, unread_times, value_of
from asr.apps.finetune.entry import SourceEntry, SourceOptions, SourceReport, located
from asr.apps.finetune.rows import first_object, json_objects
from asr.core.data.manifest import parse_utterance
from asr.errors import InputError

PURPOSES = {"audio": "audio_filepath"} | {key: key for key in ("text", "offset", "duration", "speaker", "id")}
SHARDS = re.compile(r"_OP_|_CL_|\.tar\b")


def accepts(path: Path) -> bool:
    """Return whether the first line of a file has the key audio_filepath."""
    return "audio_filepath" in first_object(path)


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read a manifest."""
    root = options.root or source.parent
    for where, row in json_objects(source, "a manifest", report):
        if row.get("offset") is None:
            check_times(row, unread_times(row.keys() - {*PURPOSES.values()}), where)
        try:
            if "shard_id" in row or SHARDS.search(str(row.get("audio_filepath"))):
                raise InputError(f"{where}: audio must be in files; this manifest names tar files. Unpack them first.")
            utterance = parse_utterance(row, where, root)
            name = parse_utterance(row | {"id": None}, where, None).id
        except InputError as error:
            report.problems.append(str(error))
            continue
        columns = {purpose: key for purpose, key in PURPOSES.items() if key in row}
        report.name_columns(columns | {"channel": next(channel_columns(row), None)}, row)
        if audio := located(root, row["audio_filepath"], where, report):
            yield SourceEntry(
                where,
                audio,
                utterance.text,
                name,
                id=value_of(row, "id"),
                speaker=utterance.speaker,
                offset=utterance.offset,
                duration=utterance.duration,
                channels=channels_of(row),
            )
