"""Write the audio of a manifest into shards: tar files with WebDataset's naming, each with its own index."""

import json
import logging
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from torch import Tensor

from asr.base.audio.encode import encode_audio
from asr.base.audio.load import audio_info, file_sample_rate, load_waveform
from asr.base.storage.location import file_name, is_url, join, printable_url
from asr.base.storage.store import list_prefix, read_range, read_whole, write_whole
from asr.base.system.files import UNFINISHED, remove_unfinished
from asr.core.data.index import INDEX, Index, write_index
from asr.core.data.index_cache import check_shards, fetched_index
from asr.core.data.manifest import Extent, Utterance
from asr.core.data.utterances import Part, Utterances
from asr.errors import AudioError, InputError, StoreError

BLOCK = tarfile.BLOCKSIZE
READ_BYTES = 1 << 23  # number of bytes that are compared at a time when a shard is verified
OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)  # Hz; audio of another rate gets the next higher one, or 48 kHz
MAX_FLAC_RATE = 655_350  # Hz: limit of FLAC's header

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShardSettings:
    """Size and encoding of shards.

    Args:
        megabytes: minimum size of a complete shard.
        opus: whether audio is encoded as Ogg Opus; if not, files are copied, and segments are cut losslessly from
            longer files.
    """

    megabytes: float
    opus: bool = False


class ShardWriter:
    """Writes shards to a folder or URL, one after another; each shard is written atomically.

    After an interruption, another call with the same manifest continues after the last complete shard. A shard is
    complete if it has an index.

    Args:
        output: folder or URL.
        prefix: prefix of the shards' names: PREFIX-000000.tar.
        settings: size and encoding of shards.
        source: hash of the manifests.
    """

    def __init__(self, output: str, prefix: str, settings: ShardSettings, source: str) -> None:
        self._output, self._prefix, self._settings = output, prefix, settings
        self._source = sha256(repr((source, settings.opus)).encode()).hexdigest()[:32]

    def write(self, utterances: Utterances, on_progress: Callable[[int], object]) -> int:
        """Write the missing shards, then the index of all shards; return the number of shards.

        Args:
            utterances: utterances with texts as in the manifest.
            on_progress: called with the number of utterances written since the last call.

        Raises:
            InputError: the folder contains shards of other utterances, or an audio file is unreadable.
            StoreError: a shard cannot be written or read back.
        """
        existing = self._names()
        if INDEX in existing and fetched_index(join(self._output, INDEX)).source != self._source:
            must = f"{printable_url(self._output)} must not have the index of other manifests or settings; it has one"
            raise InputError(f"{must}. Give another --output.")
        written: list[Index] = []
        row = number = 0
        while row < len(utterances):
            name = f"{self._prefix}-{number:06d}"
            if f"{name}.arrow" not in existing:
                self._write_shard(name, utterances, row)
            index = self._read_back(name)
            row += index.num_rows
            self._check_size(index, name, is_last=row == len(utterances))
            on_progress(index.num_rows)
            written.append(index)
            number += 1
        rows = Utterances([Part(index, "") for index in written])
        sizes = {name: size for index in written for name, size in index.shards.items()}
        self._put(INDEX, lambda file: write_index(file, rows, self._source, sizes, utterances.labels))
        return len(sizes)

    def _names(self) -> set[str]:
        """Return the names of the files in the output folder.

        Raises:
            InputError: the folder is not writable.
            StoreError: the URL cannot be listed.
        """
        if is_url(self._output):
            return {file_name(url) for url, _ in list_prefix(self._output)}
        folder = Path(self._output)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            remove_unfinished(folder)
            return {file.name for file in folder.iterdir()}
        except OSError as error:
            must = "--output must be a writable folder or a URL"
            raise InputError(f"{must}; {self._output}: {error.strerror}.") from None

    def _read_back(self, name: str) -> Index:
        """Open the index of a complete shard."""
        index = fetched_index(join(self._output, f"{name}.arrow"))
        if index.source != self._source:
            must = f"existing shards in {printable_url(self._output)} must be of the same manifests and settings"
            raise InputError(f"{must}; {name}.tar is not. Give another --output or --prefix.")
        check_shards(index, self._output)
        return index

    def _check_size(self, index: Index, name: str, is_last: bool) -> None:
        """Check that an existing shard was written with this run's --shard-megabytes."""
        (size,) = index.shards.values()
        last = Utterances([Part(index, "")])[index.num_rows - 1].extent
        limit = self._settings.megabytes * 1e6
        ends_late = last is not None and last.start - BLOCK >= limit
        if ends_late or (not is_last and size - 2 * BLOCK < limit):
            must = "--shard-megabytes must stay the same in a folder"
            raise InputError(
                f"{must}; {name}.tar has {size / 1e6:.1f} MB. Give its earlier value, or another --output."
            )

    @contextmanager
    def _temporary(self, name: str) -> Iterator[BinaryIO]:
        """Open a temporary file in the output folder, or, if that is a URL, in the system's temporary folder."""
        folder = None if is_url(self._output) else self._output
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name}-", suffix=UNFINISHED) as file:
            yield cast(BinaryIO, file)

    def _write_shard(self, name: str, utterances: Utterances, first: int) -> None:
        shard, rows = f"{name}.tar", []
        with self._temporary(shard) as file:
            for row in range(first, len(utterances)):
                utterance = utterances[row]
                content, suffix = self._content(utterance)
                entry = _entry(utterance)
                extent = _add(file, f"{row:09d}{suffix}", content)
                _add(file, f"{row:09d}.json", json.dumps(entry, ensure_ascii=False).encode("utf-8", "surrogateescape"))
                rows.append(replace(utterance, audio_filepath=shard, extent=extent))
                if file.tell() >= self._settings.megabytes * 1e6:
                    break
            file.write(bytes(2 * BLOCK))  # marks the end of the archive
            file.flush()
            size = file.tell()
            write_whole(join(self._output, shard), Path(file.name))
            self._verify(shard, Path(file.name), size)
        sizes, labels = {shard: size}, utterances.labels
        self._put(f"{name}.arrow", lambda target: write_index(target, rows, self._source, sizes, labels))

    def _content(self, utterance: Utterance) -> tuple[bytes, str]:
        """Return an utterance's audio as the content of a file, and the suffix of its name."""
        path = utterance.audio_filepath
        if utterance.extent is not None:
            must = "manifests for asr.shards must list audio files"
            given = f"{utterance.id!r} is in the shard {printable_url(path)}"
            raise InputError(f"{must}; {given}. Copy the shards and their index instead.")
        if utterance.offset is None and not self._settings.opus:
            return read_whole(path), os.path.splitext(file_name(path))[1].lower() or ".audio"
        sample_rate = file_sample_rate(path)
        if self._settings.opus:
            sample_rate = min((rate for rate in OPUS_RATES if rate >= sample_rate), default=OPUS_RATES[-1])
        duration = None if utterance.offset is None else utterance.duration
        waveform = load_waveform(path, sample_rate, offset=utterance.offset, duration=duration)
        content, suffix = encoded_audio(waveform, sample_rate, self._settings.opus)
        num_samples = audio_info(path, content).num_samples
        if num_samples != len(waveform):
            must = f"{printable_url(path)}: all {len(waveform)} samples must be encoded; {num_samples} were"
            raise AudioError(f"{must}. Run the command again.")
        return content, suffix

    def _put(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        with self._temporary(name) as file:
            write(file)
            file.flush()
            write_whole(join(self._output, name), Path(file.name))

    def _verify(self, shard: str, copy: Path, size: int) -> None:
        """Read a shard back and compare it with the local copy."""
        path = join(self._output, shard)
        with copy.open("rb") as file:
            for start in range(0, size, READ_BYTES):
                block = file.read(READ_BYTES)
                if read_range(path, start, len(block)) != block:
                    raise StoreError(
                        f"{printable_url(path)}: a shard must be stored unchanged; it differs after {start:,} bytes."
                    )


def encoded_audio(waveform: Tensor, sample_rate: int, opus: bool) -> tuple[bytes, str]:
    """Encode a waveform (S,), as Opus or losslessly.

    Returns:
        The content of an audio file, and the file's suffix. Lossless audio is FLAC if the samples are integers of 16 or
        24 bits, otherwise WAV.
    """
    samples = waveform.numpy()
    if opus:
        return encode_audio(samples, sample_rate, "OGG", "OPUS"), ".opus"
    for bits in (16, 24):
        full_scale = 2 ** (bits - 1)
        integers = samples.astype(np.float64) * full_scale
        in_range = integers.min() >= -full_scale and integers.max() < full_scale
        if in_range and (integers == np.rint(integers)).all() and sample_rate <= MAX_FLAC_RATE:
            as_32_bits = (integers * 2 ** (32 - bits)).astype(np.int32)
            return encode_audio(as_32_bits, sample_rate, "FLAC", f"PCM_{bits}"), ".flac"
    return encode_audio(samples, sample_rate, "WAV", "FLOAT"), ".wav"


def _entry(utterance: Utterance) -> dict[str, Any]:
    """Return the content of an utterance's .json in a shard: the keys of a manifest line except the path."""
    entry = {
        "id": utterance.id,
        "duration": utterance.duration,
        "offset": utterance.offset,
        "speaker": utterance.speaker,
        "text": utterance.text,
    }
    return {key: value for key, value in entry.items() if value is not None} | dict(utterance.labels)


def _add(file: BinaryIO, name: str, content: bytes) -> Extent:
    """Append a member to an archive, without timestamps or owners, so that shards are reproducible."""
    header = tarfile.TarInfo(name)
    header.size, header.mode = len(content), 0o644
    file.write(header.tobuf(tarfile.USTAR_FORMAT))
    start = file.tell()
    file.write(content + bytes(-len(content) % BLOCK))
    return Extent(start, len(content))
