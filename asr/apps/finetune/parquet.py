"""Parquet files that contain audio, as in Hugging Face's data sets: the audio is written to files."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.apps.finetune import audio_folder
from asr.apps.finetune.columns import Columns, columns_by_purpose, row_entry
from asr.apps.finetune.entry import SourceEntry, SourceOptions, SourceReport
from asr.apps.finetune.rows import parquet_columns
from asr.base.audio.load import audio_info
from asr.base.audio.media import media_kind
from asr.base.system.files import write_whole
from asr.errors import AudioError, InputError, one_line

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

ROWS = 16  # number of rows read at a time; few, because audio may be long
MAX_RATIO = 20  # maximum ratio of bytes of audio to bytes of the file: audio is hardly compressible
SPARE_BYTES = 64 << 20  # allowed in addition to MAX_RATIO, because small files of silence compress well
CUT_TOLERANCE_SECONDS = 0.1  # difference of the length of a file and of the segment that was cut out to be this file
MAGIC = ((b"RIFF", ".wav"), (b"fLaC", ".flac"), (b"OggS", ".ogg"), (b"ID3", ".mp3"), (b"\xff", ".mp3"))
MEDIA = {"mov": ".m4a", "matroska": ".webm"}  # suffixes of the kinds of `media_kind`
WITHOUT_AUDIO = "If its rows name files of audio, save it as a table in CSV"
SUBTLE = re.compile(r"[^\w.-]|^\.+")  # characters with a special meaning in names of files


def accepts(path: Path) -> bool:
    """Return whether a path is a .parquet file, or a folder with such files at any depth, and has audio in it."""
    if audio_folder.accepts(path):
        return False
    first = next(path.rglob("*.parquet"), None) if path.is_dir() else path if path.suffix == ".parquet" else None
    return first is not None and not audio_folder.accepts(first)


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read a file, or all files of a folder; their audio is written unchanged to `options.audio_dir`."""
    import pyarrow.parquet

    files = sorted(source.rglob("*.parquet")) if source.is_dir() else [source]
    if not files:
        raise InputError(f"{source}: must hold *.parquet; it holds none.")
    columns_of_first = parquet_columns(files[0])
    if columns_of_first and "audio" not in columns_of_first:
        raise InputError(_without_audio(files[0], columns_of_first))
    if options.audio_dir is None:
        raise InputError("--audio-dir must be given for Parquet files: their audio is written there.")
    folders = _audio_folders(source, files)
    if options.on_audio_names is not None:
        options.on_audio_names({folder.parts[0] for folder in folders.values()})
    for file, folder in folders.items():
        max_bytes = MAX_RATIO * file.stat().st_size + SPARE_BYTES
        try:
            table = pyarrow.parquet.ParquetFile(file)
            _check_size(_declared_bytes(table), max_bytes, file)
            names = table.schema_arrow.names
            if "audio" not in names:
                raise InputError(_without_audio(file, names))
            columns = columns_by_purpose(names, options, str(file))
            purposes = {"audio": "audio"} | columns.purposes()
            report.name_columns(purposes, names)
            read_columns = [*{*purposes.values(), *columns.unread} - {None}]
            number, num_bytes = 0, 0
            for batch in table.iter_batches(ROWS, columns=read_columns):
                for row in batch.to_pylist():
                    number += 1
                    for entry in _entry(row, f"{file}:{number}", columns, options.audio_dir, folder, report):
                        num_bytes += entry.audio.stat().st_size
                        _check_size(num_bytes, max_bytes, file)
                        yield entry
        except (pyarrow.ArrowException, OSError) as error:
            reason = one_line(error)
            raise InputError(f"{file}: must be a Parquet file that can be read; {reason}.") from None


def _without_audio(file: Path, columns: Sequence[str]) -> str:
    return f"{file}: must have the column audio; it has {', '.join(columns)}. {WITHOUT_AUDIO}."


def _audio_folders(source: Path, files: Sequence[Path]) -> dict[Path, Path]:
    """Return a folder for each file's audio, relative to --audio-dir: the file's path without special characters."""
    folders: dict[Path, Path] = {}
    for file in files:
        relative = file.relative_to(source) if source.is_dir() else Path(file.name)
        folder = Path(*(SUBTLE.sub("_", part) for part in relative.with_suffix("").parts))
        if other := next((other for other, other_folder in folders.items() if other_folder == folder), None):
            raise InputError(f"{file}: its audio would be written to the same folder as that of {other}. Rename one.")
        folders[file] = folder
    return folders


def _declared_bytes(table: "ParquetFile") -> int:
    """Return the size in memory of the largest column of a row group, according to the file's metadata."""
    groups = [table.metadata.row_group(number) for number in range(table.metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    return max((column.total_uncompressed_size for column in columns), default=0)


def _check_size(size: int, max_bytes: int, file: Path) -> None:
    """Refuse a file whose unpacked size far exceeds its own size: a file of a few kB could fill a disk."""
    if size > max_bytes:
        must = f"{file}: its columns must unpack to at most {MAX_RATIO} times its size and {SPARE_BYTES >> 20} MiB"
        raise InputError(f"{must}; they unpack to {size >> 20} MiB or more. Is the file damaged?")


def _entry(
    row: dict[str, Any],
    where: str,
    columns: Columns,
    audio_dir: Path,
    folder: Path,
    report: SourceReport,
) -> Iterator[SourceEntry]:
    """Write the audio of a row to a file below `audio_dir`, and yield its entry."""
    text, audio = row[columns.text], row["audio"]
    content = audio.get("bytes") if isinstance(audio, dict) else audio
    if not isinstance(content, bytes) or not isinstance(text, str):
        given = f"{type(content).__name__} and {text!r}"
        report.add(where, f"must hold audio in bytes, and a text; got {given}. {WITHOUT_AUDIO}")
        return
    magics = (suffix for magic, suffix in MAGIC if content.startswith(magic))
    suffix = next(magics, MEDIA.get(media_kind(content[:8]) or ""))
    if suffix is None:
        report.add(where, f"audio must be WAV, FLAC, Ogg, MP3, MP4 or WebM; it begins with {content[:8]!r}")
        return
    path = audio_dir / folder / f"{int(where.rpartition(':')[2]):08d}{suffix}"
    if os.path.realpath(path) != os.path.join(os.path.realpath(audio_dir), folder, path.name):
        raise InputError(f"{path}: must be in --audio-dir; a link leads from it to {os.path.realpath(path)}.")
    write_whole(path, lambda file: file.write(content))
    name = f"{'_'.join(folder.parts)}-{path.stem}"
    if entry := row_entry(row, columns, where, path, name, report):
        yield _cut_out(entry, name)


def _cut_out(entry: SourceEntry, name: str) -> SourceEntry:
    """Return the entry of the whole file if the times are those of a longer recording, from which the file was cut."""
    if entry.offset is None or entry.duration is None:
        return entry
    try:
        info = audio_info(entry.audio)
    except AudioError:  # it is reported when all audio is examined
        return entry
    is_whole = abs(info.num_samples / info.sample_rate - entry.duration) <= CUT_TOLERANCE_SECONDS
    return replace(entry, name=name, offset=None, duration=None) if is_whole else entry
