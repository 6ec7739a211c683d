"""Parquet files with audio inside, as Hugging Face's data sets are stored: the audio is written out."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asr.errors import InputError
from asr.system.files import write_whole
from recipes.convert.entry import Entry, Options, Problems, speaker_of, text_column

ROWS = 16  # read at a time: audio may be long
MAGIC = ((b"RIFF", ".wav"), (b"fLaC", ".flac"), (b"OggS", ".ogg"), (b"ID3", ".mp3"), (b"\xff", ".mp3"))
SUBTLE = re.compile(r"[^\w.-]|^\.+")  # letters of a name that may mean more than themselves


def read(source: Path, options: Options, problems: Problems) -> Iterator[Entry]:
    """Read a file, or all of a folder; audio files go to `options.audio_dir`, as they are.

    Raises:
        InputError: pyarrow is not there, no folder was given, or a file is not of this kind.
    """
    try:
        import pyarrow.parquet
    except ImportError:
        raise InputError("Parquet files are read by pyarrow, which is not here: pip install 'asr[convert]'.") from None
    if options.audio_dir is None:
        raise InputError("--audio-dir must be given for Parquet files: their audio is written there.")
    files = sorted(source.rglob("*.parquet")) if source.is_dir() else [source]
    if not files:
        raise InputError(f"{source}: must hold *.parquet; it holds none.")
    for file in files:
        stem = SUBTLE.sub("_", file.relative_to(source).with_suffix("").as_posix() if source.is_dir() else file.stem)
        try:
            table = pyarrow.parquet.ParquetFile(file)
            columns = table.schema_arrow.names
            text, audio = text_column(columns, options, str(file)), _audio_column(columns, file)
            wanted = [name for name in columns if name in (text, audio, "id", "speaker", "speaker_id", "client_id")]
            number = 0
            for batch in table.iter_batches(ROWS, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield from _entry(row, f"{file}:{number}", (text, audio), options.audio_dir / stem, problems)
        except (pyarrow.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{file}: must be a Parquet file that can be read; {reason}.") from None


def _audio_column(columns: list[str], file: Path) -> str:
    if "audio" not in columns:
        raise InputError(f"{file}: must have the column audio; it has {', '.join(columns)}.")
    return "audio"


def _entry(
    row: dict[str, Any], where: str, columns: tuple[str, str], folder: Path, problems: Problems
) -> Iterator[Entry]:
    """Write the audio of a row to a file."""
    text, audio = (row[column] for column in columns)
    content = audio.get("bytes") if isinstance(audio, dict) else audio
    if not isinstance(content, bytes) or not isinstance(text, str):
        problems.add(where, f"must hold audio in bytes, and a text; got {type(content).__name__} and {text!r}")
        return
    suffix = next((suffix for magic, suffix in MAGIC if content.startswith(magic)), None)
    if suffix is None:
        problems.add(where, f"audio must be WAV, FLAC, Ogg or MP3; it begins with {content[:8]!r}")
        return
    path = folder / f"{int(where.rpartition(':')[2]):08d}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: file.write(content))
    identity = row.get("id")
    yield Entry(where, path, text, f"{folder.name}-{path.stem}" if identity is None else str(identity), speaker_of(row))
