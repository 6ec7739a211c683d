"""Index lhotse Shar data (tar files of recordings, and files of cuts) without copying the audio."""

import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from asr.data.dataset import DURATION_TOLERANCE_SECONDS
from asr.data.foreign_shards import OnShard, members
from asr.data.lhotse_cuts import channels_of, joined_text, text_channels
from asr.data.manifest import MAX_LINE_LENGTH, Extent, Utterance, parse_object, parse_utterance
from asr.errors import InputError, one_line
from asr.storage.location import file_name, printable_url
from asr.storage.range_file import RangeFile
from asr.system.files import bounded_lines

NO_AUDIO = (".json", ".nodata", ".nometa")  # suffixes of members without audio


def index_shar(shards: Sequence[str], cuts: Sequence[str], on_shard: OnShard) -> Iterator[Utterance]:
    """Yield the utterances of Shar data: one per cut, with the texts of its supervisions in order.

    Args:
        shards: recording.*.tar, as paths or URLs.
        cuts: cuts.*.jsonl.gz, one for each shard, in the order of the shards.
        on_shard: called after each shard.

    Raises:
        InputError: a file has another format, or a cut is not an utterance.
        StoreError: a file cannot be read.
    """
    if len(cuts) != len(shards):
        must = f"--lhotse-cuts must list one file of cuts for each of the {len(shards)} tar files, in the same order"
        raise InputError(f"{must}; got {len(cuts)}.")
    for shard, file in zip(shards, cuts, strict=True):
        extents = _recordings(shard)
        for where, line in _lines(file):
            cut = parse_object(line, where)
            yield _utterance(cut, where, shard, extents)
        on_shard()


def _recordings(shard: str) -> dict[str, Extent]:
    """Return the byte range of each cut's audio, by the cut's id (the member's name without its suffix)."""
    extents = {}
    for name, extent in members(shard):
        stem, _, suffix = name.rpartition(".")
        if f".{suffix}" not in NO_AUDIO:
            extents[stem] = extent
    return extents


def _lines(path: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a compressed file, each with its `file:line`."""
    name = printable_url(path)
    try:
        with gzip.open(io.BufferedReader(RangeFile(path)), "rt", encoding="utf-8") as file:
            yield from bounded_lines(file.readline, MAX_LINE_LENGTH, name)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{name}: must be a file of lhotse cuts, .jsonl.gz; {one_line(error)}.") from None


def _utterance(cut: dict[str, Any], where: str, shard: str, extents: dict[str, Extent]) -> Utterance:
    extent = extents.get(str(cut.get("id")))
    if extent is None:
        raise InputError(f"{where}: {file_name(shard)} must contain the audio of {cut.get('id')!r}; it does not.")
    try:
        recorded = float(cut["recording"]["duration"])
        text, channels = joined_text(cut), text_channels(cut)
        speakers = {part.get("speaker") for part in cut["supervisions"]}
        entry = {"id": cut["id"], "audio_filepath": shard, "text": text, "duration": cut["duration"]}
    except InputError as error:
        raise InputError(f"{where}: {error}.") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        must = f"{where}: a cut must have id, duration, recording and supervisions"
        raise InputError(f"{must}; {type(error).__name__}: {one_line(error)}.") from None
    speaker = speakers.pop() if len(speakers) == 1 else None
    utterance = parse_utterance(entry | {"speaker": speaker}, where, None)
    if abs(recorded - utterance.duration) > DURATION_TOLERANCE_SECONDS:
        must = f"{where}: a cut must cover its whole recording"
        given = f"{utterance.id!r} has {utterance.duration:g} of {recorded:g} s"
        raise InputError(f"{must}; {given}. Write the Shar with fields={{'recording': 'flac'}}.")
    if len(channels) < (count := len(channels_of(cut))):
        must = f"{where}: the text must belong to all {count} channels of the cut, because they are mixed"
        raise InputError(f"{must}; it belongs to {', '.join(map(str, channels))}. Write one cut for each channel.")
    return replace(utterance, extent=extent)
