"""Encode and decode audio in memory by libsndfile, which gets file descriptors and never Python's file objects.

For a file object, libsndfile calls Python for each read and write. An exception in such a call, as Ctrl-C raises it
wherever Python runs, is printed and lost: libsndfile continues, and bytes or samples are missing without an error.
"""

import io
import os
import tempfile
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray


def encode_audio(
    samples: NDArray[Any], sample_rate: int, container: str, encoding: str, compression: float | None = None
) -> bytes:
    """Return the content of a file with one channel.

    Args:
        samples: float32, from -1 to 1 unless the encoding is FLOAT, or int32, of which the encoding keeps the highest
            bits; (S,).
        sample_rate: in Hz.
        container: libsndfile's name of the container, such as OGG.
        encoding: libsndfile's name of the encoding, such as OPUS.
        compression: from 0 (best quality) to 1 (smallest file); None: libsndfile's default.
    """
    with anonymous_file() as file:
        with soundfile.SoundFile(
            file.fileno(),
            "w",
            sample_rate,
            1,
            encoding,
            format=container,
            closefd=False,
            compression_level=compression,
        ) as sound:
            sound.write(samples)
        file.seek(0)
        return file.readall()


def decode_audio(content: bytes) -> NDArray[np.float32]:
    """Return the samples, (S,), of the content of a file with one channel, which `encode_audio` has made.

    Files from elsewhere need the checks of `load_waveform`.
    """
    with anonymous_file(content) as file:
        samples: NDArray[np.float32] = soundfile.read(file.fileno(), dtype="float32", closefd=False)[0]
        return samples


def anonymous_file(content: bytes = b"") -> io.FileIO:
    """Return an open file with this content and without a name; on Linux it is in memory."""
    if hasattr(os, "memfd_create"):
        file = io.FileIO(os.memfd_create("audio", os.MFD_CLOEXEC), "r+b")
    else:
        file = tempfile.TemporaryFile("w+b", buffering=0)  # noqa: SIM115  the caller closes it
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
    file.seek(0)
    return file
