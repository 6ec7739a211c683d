"""The length of FLAC streams: libsndfile decodes the declared number of samples, and ignores all frames after them."""

import os
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from asr.errors import AudioError

_STREAM = re.compile(rb"fLaC[\x00\x80]\x00\x00\x22")  # the beginning of a stream
_BLOCK_BYTES = 1 << 20  # read at a time
_HEADER_BYTES = 16  # maximum length of a frame's header
_LONG_BYTES = 1 << 22  # a file of this size is checked once in a process, because many segments may be read from it
_CRC8 = [0]
for _byte in range(1, 256):  # polynomial x^8 + x^2 + x + 1
    _CRC8.append(_CRC8[_byte >> 1] << 1 & 0xFF ^ (0x07 if _CRC8[_byte >> 1] & 0x80 else 0) ^ (0x07 if _byte & 1 else 0))

_checked: set[tuple[int, int, int, int]] = set()  # device, inode, size and time of change of long files


class _Frame(NamedTuple):
    """A frame's header; `number` counts frames or, in streams of variable block size, samples."""

    number: int
    num_samples: int
    is_variable: bool
    format: tuple[int, int]


def check_flac(file: BinaryIO, start: int, name: str) -> None:
    """Check that a file holds one FLAC stream, and no more samples than its header declares.

    Frames are counted by their headers; a header counts if its number follows the number of another header.

    Args:
        file: the file.
        start: position of the stream in bytes.
        name: name of the file, for errors.

    Raises:
        AudioError: the file holds another stream or further samples.

    *Source*: RFC 9639, sections 8 and 9.1.
    """
    status = os.fstat(file.fileno())
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if key in _checked:
        return
    file.seek(start)
    if not _STREAM.match(head := file.read(26)):
        return  # libsndfile reports the fault
    declared = int.from_bytes(head[18:26], "big") & (1 << 36) - 1
    file.seek(start + 4)
    is_last = False
    while not is_last:
        block = file.read(4)
        is_last = not block or block[0] >= 0x80
        file.seek(int.from_bytes(block[1:], "big"), os.SEEK_CUR)
    num_samples = _count_samples(file, name)
    if 0 < declared < num_samples:
        must = f"{name}: must hold only the {declared} samples that its header declares"
        raise AudioError(f"{must}; it holds {num_samples}. Convert it first: ffmpeg -i FILE NEW.wav")
    if status.st_size >= _LONG_BYTES:
        _checked.add(key)


def _count_samples(file: BinaryIO, name: str) -> int:
    """Count the samples of each channel from the file's position, where the first frame begins, to its end."""
    num_samples = 0
    first: _Frame | None = None
    expected: set[int] = set()
    for block in _overlapping_blocks(file):
        if _STREAM.search(block):
            raise AudioError(
                f"{name}: must hold one FLAC stream; it holds several in a row, and only the first would be decoded. "
                "Convert each of them to a file of its own, or join them with: sox FIRST.flac SECOND.flac NEW.flac"
            )
        for match in re.finditer(rb"\xff[\xf8\xf9]", block[: -_HEADER_BYTES + 1]):
            frame = _read_header(block[match.start() : match.start() + _HEADER_BYTES])
            if frame is None or (first is not None and (frame.is_variable, frame.format) != first[2:]):
                continue
            if first is None:
                first = frame
                expected.add(frame.number)
            if frame.number in expected:
                expected.remove(frame.number)
                num_samples += frame.num_samples
            expected.add(frame.number + (frame.num_samples if frame.is_variable else 1))
    return num_samples


def _overlapping_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a file in blocks; each begins with the last bytes of the previous one, too few for a header."""
    end = b""
    while block := file.read(_BLOCK_BYTES):
        yield end + block
        end = (end + block)[-_HEADER_BYTES + 1 :]
    yield end + bytes(_HEADER_BYTES)


def _read_header(header: bytes) -> _Frame | None:
    """Read a frame's header; None if the bytes are not one."""
    block_code, rate_code, channels, bits = header[2] >> 4, header[2] & 15, header[3] >> 4, header[3] & 15
    ones = 8 - (header[4] ^ 0xFF).bit_length()  # the number is coded like a character in UTF-8
    if block_code == 0 or rate_code == 15 or channels > 10 or bits & 1 or ones in (1, 8):
        return None
    number, offset = header[4] & 0x7F >> ones, 5
    while offset < 4 + ones:
        number, offset = number << 6 | header[offset] & 0x3F, offset + 1
    size = {6: 1, 7: 2}.get(block_code, 0)  # bytes of the number of samples
    if size:
        num_samples = 1 + int.from_bytes(header[offset : offset + size], "big")
    else:
        num_samples = 192 if block_code == 1 else 576 << block_code - 2 if block_code < 6 else 1 << block_code
    offset += size + {12: 1, 13: 2, 14: 2}.get(rate_code, 0)
    crc = 0
    for byte in header[:offset]:
        crc = _CRC8[crc ^ byte]
    return _Frame(number, num_samples, bool(header[1] & 1), (rate_code, bits)) if crc == header[offset] else None
