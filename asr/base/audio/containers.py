"""Headers of audio files: lengths that libsndfile does not check, and headers that it does not understand."""

import io
import re
import struct
from typing import BinaryIO, NamedTuple

from asr.base.audio.encode import anonymous_file
from asr.base.audio.flac import check_flac
from asr.errors import AudioError, TruncatedError


class Container(NamedTuple):
    """Corrections to what libsndfile reads from a file: a valid header, or a number that libsndfile does not report.

    Args:
        mended: the whole file with a corrected header, or FLAC without its Ogg pages; None if libsndfile understands
            the original file.
        last_page_samples: number of samples in the last page of an Ogg file.
    """

    mended: bytes | None = None
    last_page_samples: int = 0


def read_container(file: BinaryIO, name: str) -> Container:
    tags = _after_tags(file)
    start = _after_zeros(file, tags)
    file.seek(start)
    magic = file.read(4)
    file.seek(0)
    if _MP3_HEADER.match(magic) or (tags and magic not in _KINDS):
        return Container(mended=_mend_mp3(file.read(), tags, name))
    if magic == _FLAC:
        check_flac(file, start, name)
        return Container(mended=_from(file, start) if start > tags else None)
    if start and magic in _KINDS:  # libsndfile counts a tag as a part of the audio, and ignores the end of the file
        content = _from(file, start)
        container = read_container(io.BytesIO(content), name)
        return container._replace(mended=container.mended or content)
    if magic in _CHUNKED or magic in _AU:
        return _read_chunks(file, magic, name)
    if magic == b"OggS":
        return _read_ogg(file.read(), name)
    return Container()


def _after_tags(file: BinaryIO) -> int:
    """Return the position after the ID3v2 tags at the beginning of a file."""
    offset = 0
    while (head := file.read(10)).startswith(b"ID3") and len(head) == 10:
        a, b, c, d = head[6:]  # length of the tag, 7 bits in each byte
        offset += 10 + (a << 21 | b << 14 | c << 7 | d)
        file.seek(offset)
    return offset


def _after_zeros(file: BinaryIO, offset: int) -> int:
    """Return the position after the zeros at `offset`, at most _MAX_GAP; some taggers leave room for longer tags."""
    file.seek(offset)
    if file.read(1) != b"\0":
        return offset
    file.seek(offset)
    zeros = file.read(_MAX_GAP)
    return offset + len(zeros) - len(zeros.lstrip(b"\0"))


def _from(file: BinaryIO, offset: int) -> bytes:
    file.seek(offset)
    return file.read()


def truncated(name: str, finding: str) -> TruncatedError:
    return TruncatedError(f"{name}: must be complete; it is truncated or damaged: {finding}. Copy or create it again.")


class _Chunks(NamedTuple):
    """Layout of a file format that consists of chunks.

    Args:
        start: position of the first chunk.
        head: struct format of a chunk's header: identifier and length.
        audio: identifier of the audio chunk.
        align: a chunk is padded to a multiple of this number of bytes.
        length_counts_head: whether a chunk's length includes its header.
    """

    start: int
    head: str
    audio: bytes
    align: int = 2
    length_counts_head: bool = False


_CHUNKED = {
    b"RIFF": _Chunks(12, "<4sI", b"data"),
    b"RIFX": _Chunks(12, ">4sI", b"data"),
    b"RF64": _Chunks(12, "<4sI", b"data"),
    b"FORM": _Chunks(12, ">4sI", b"SSND"),
    b"caff": _Chunks(8, ">4sQ", b"data", align=1),
    b"riff": _Chunks(40, "<16sQ", b"data", align=8, length_counts_head=True),  # W64
}
_W64 = b"riff"
_AU = {b".snd": ">II", b"dns.": "<II"}  # AU has no chunks: its header declares the position and length of the audio
_FLAC = b"fLaC"
_FLAC_PACKET = b"\x7fFLAC"  # the beginning of the first packet of FLAC in Ogg
_KINDS = {_FLAC, b"OggS", *_AU, *_CHUNKED}
_MAX_CHUNKS = 1000  # limits the time that a malicious file can take
_CHUNK_NAME = re.compile(rb"[ -~]{4}")
TAGS = (b"TAG", b"ID3", b"APETAGEX", b"LYRICSBEGIN")  # the beginnings of tags that programs append to any format
_NOTES = (b"LIST", b"id3 ", b"ID3 ", b"bext", b"iXML", b"JUNK", b"junk")  # chunks that may be cut off
_MAX_JUNK = 128  # bytes after the audio that may be anything


def _read_chunks(file: BinaryIO, magic: bytes, name: str) -> Container:
    """Compare the declared and the actual length of the audio chunk, because libsndfile silently uses the smaller one.

    A program that writes to a pipe cannot know the length. ffmpeg, sox and others declare about 2**31 or 2**32 bytes,
    and libsndfile then reads to the end of the file. Other programs, and interrupted recorders, declare 0; libsndfile
    then usually reads nothing. In a WAV file, this function replaces 0 by 2**32 - 1, so that libsndfile reads to the
    end of the file.
    """
    size = file.seek(0, io.SEEK_END)
    if magic in _AU:
        file.seek(4)
        offset, length = struct.unpack(_AU[magic], file.read(8).ljust(8, b"\0"))
        chunk: tuple[int, int, int] | None = (offset, length, size)
    else:
        chunk = _find_audio_chunk(file, size, _CHUNKED[magic])
    if chunk is None:
        return Container()  # libsndfile reports the fault
    offset, length, end = chunk
    if length == 0 and magic[:1] == b"R" and offset < size != end:
        file.seek(0)
        mended = bytearray(file.read())
        if magic == b"RF64":
            mended[:4] = b"RIFF"
        mended[offset - 4 : offset] = b"\xff\xff\xff\xff"
        return Container(mended=bytes(mended))
    if _is_placeholder(length):
        return Container()
    if offset + length > size:
        raise truncated(name, f"only {size - offset} of {length} bytes of audio are present")
    if magic != _W64:  # libsndfile reads a W64 file to its end
        _check_rest(file, offset=offset + length, length=length, size=size, layout=_CHUNKED.get(magic), name=name)
    return Container()


def _check_rest(file: BinaryIO, offset: int, length: int, size: int, layout: _Chunks | None, name: str) -> None:
    """Check that no audio follows the declared audio, because libsndfile would ignore it.

    Other chunks and what `unexpected` allows may follow.

    Args:
        file: the file.
        offset: end of the declared audio, in bytes.
        length: length of the declared audio, in bytes; a chunk of odd length is followed by padding.
        size: size of the file, in bytes.
        layout: layout of the chunks; None: the format has no chunks.
        name: name of the file, for errors.

    Raises:
        AudioError: other bytes follow.
    """
    for _ in range(_MAX_CHUNKS):
        if layout is None:
            break
        starts = (offset + -length % layout.align, offset)  # some programs leave the padding out
        ends = [(start, _end_of_chunk(file, start, size, layout)) for start in starts]
        start, end = ends[0] if ends[0][1] else ends[1]
        if not end:
            break
        offset, length = end, end - start
    rest, left = unexpected(file, offset, size)
    if rest.startswith(tuple(_KINDS)):
        must = f"{name}: must hold one recording; it holds several in a row, and only the first would be decoded"
        raise AudioError(f"{must}. Split it, or join the recordings with: sox FIRST.wav SECOND.wav NEW.wav")
    if rest:
        must = f"{name}: must hold only the audio that its header declares"
        given = f"{left} bytes follow that are neither a chunk nor a tag, so that audio would be ignored"
        raise AudioError(f"{must}; {given}. Convert it first: sox --ignore-length FILE NEW.wav")


def unexpected(file: BinaryIO, offset: int, size: int) -> tuple[bytes, int]:
    """Return the first bytes after the end of the audio that may not follow it, and the number of bytes from there on.

    Zeros, then a tag or at most _MAX_JUNK bytes of any kind may follow the audio in each format: then (b"", 0).
    """
    file.seek(offset)
    while block := file.read(1 << 16):
        rest = block.lstrip(b"\0")
        left = size - file.tell() + len(rest)
        if rest.startswith(TAGS) or left <= _MAX_JUNK:
            break
        if rest:
            return rest, left
    return b"", 0


def _end_of_chunk(file: BinaryIO, start: int, size: int, layout: _Chunks) -> int:
    """Return the end of a chunk that begins at `start`; 0 if no chunk begins there, or one with audio."""
    file.seek(start)
    head = file.read(struct.calcsize(layout.head))
    name = head[:4]
    if not _CHUNK_NAME.fullmatch(name) or name == layout.audio or name in _CHUNKED or start + len(head) > size:
        return 0
    _, length = struct.unpack(layout.head, head.ljust(struct.calcsize(layout.head), b"\0"))
    end = start + len(head) + int(length)
    return end if end <= size else size if name in _NOTES else 0


def _find_audio_chunk(file: BinaryIO, size: int, layout: _Chunks) -> tuple[int, int, int] | None:
    """Return the position of the audio, its declared number of bytes, and the declared end of the file."""
    file.seek(4)
    end = 8 + int.from_bytes(file.read(4), "big" if layout.head[0] == ">" else "little")
    wide: int | None = None
    offset = layout.start
    head_length = struct.calcsize(layout.head)
    for _ in range(_MAX_CHUNKS):
        if offset + head_length > size:
            return None
        file.seek(offset)
        head = file.read(head_length)
        identifier, length = struct.unpack(layout.head, head)
        offset += head_length
        if layout.length_counts_head:
            length = max(0, length - head_length)
        if identifier == b"ds64":  # RF64: 64-bit lengths; they apply where other headers declare 2**32 - 1
            outer, wide = struct.unpack("<QQ", file.read(16).ljust(16, b"\0"))
            end = 8 + outer
        if identifier.startswith(layout.audio):
            return offset, wide if wide is not None and length == 0xFFFFFFFF else length, end
        offset += length + -length % layout.align
    return None


def _is_placeholder(length: int) -> bool:
    """Whether a declared number of bytes means "unknown": 0, or close to the largest number of 31, 32 or 64 bits.

    sox rounds 0x7ffff000 down to whole samples; opusdec writes 0x7fffffff, arecord 0x80000000, ffmpeg 0xffffffff.
    """
    near_top = length < 1 << 32 and length % (1 << 31) >= (1 << 31) - (1 << 16)
    return near_top or length in (0, 1 << 31) or length >= 1 << 62


def _read_ogg(data: bytes, name: str) -> Container:
    """Read the pages of an Ogg file up to the page marked as the last; FLAC in Ogg becomes a FLAC file.

    *Source*: RFC 3533, section 6; for FLAC, RFC 9639, section 10.1.
    """
    offset, ended = 0, False
    before, last = 0, 0  # number of samples up to the end of the second-to-last and of the last page
    is_flac, flac, num_pages = data.startswith(_FLAC_PACKET, 28), bytearray(), 0
    while data.startswith(b"OggS", offset) and offset + 27 <= len(data):
        flags, num_segments = data[offset + 5], data[offset + 26]
        if ended and flags & 2:  # a page that begins a stream
            raise AudioError(
                f"{name}: must hold one stream; it holds several in a row, and only the first would be decoded. "
                "Convert it first: ffmpeg -i FILE NEW.wav"
            )
        granule = int.from_bytes(data[offset + 6 : offset + 14], "little", signed=True)
        if granule > last:  # otherwise no packet ends in this page
            before, last = last, granule
        start, stream, number = offset + 27 + num_segments, data[offset + 14 : offset + 18], data[offset + 18]
        offset = start + sum(data[offset + 27 : start])
        ended = bool(flags & 4) and offset <= len(data)
        if is_flac and stream == data[14:18]:  # other streams may be a video
            if number != num_pages % 256:
                raise truncated(name, f"page {num_pages} of its stream is missing")
            flac += data[start:offset]
            num_pages += 1
    if not ended:
        raise truncated(name, "no complete Ogg page is marked as the last")
    if not is_flac:
        return Container(last_page_samples=last - before)
    mended = bytes(flac[len(_FLAC_PACKET) + 4 :])  # a version and the number of headers follow
    with anonymous_file(mended) as file:
        check_flac(file, 0, name)
    return Container(mended=mended)


# The first three bytes of a Layer III frame: sync word, version (1, 2 or 2.5), and a valid bit rate.
_MP3_HEADER = re.compile(rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb][\x10-\xef]")
_MP3_KBITS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)  # bit rates of version 1
_MP3_KBITS_LOW = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)  # bit rates of versions 2 and 2.5
_MAX_GAP = 1 << 16  # maximum number of bytes between the tags and the first frame or the magic number


def _mend_mp3(data: bytes, start: int, name: str) -> bytes | None:
    """Count the frames of an MP3 file, and declare their number in a Xing header.

    Without a Xing header, libsndfile estimates the length from one frame's bit rate. If several files were
    joined into one, libsndfile trusts the Xing header of the first. In both cases it ignores all frames after the
    assumed length.

    Args:
        data: content of the file.
        start: position after the tags at the beginning of the file.
        name: name of the file, for errors.

    Returns:
        The file with a correct Xing header, beginning with its first frame; None if the file is correct, or if it is
        not an MP3 file.

    *Source*: ISO 11172-3, section 2.4; for the Xing header, parse.c of mpg123.
    """
    offset = start
    if not _mp3_frame_length(data[start : start + 3]):
        offset = _next_mp3_frame(data, start, start + _MAX_GAP)
    if offset < 0:
        return None  # not an MP3 file; libsndfile reports this
    first = data[offset : offset + 64]
    declared = _xing_frames(first)
    num_frames = _count_mp3_frames(data, offset, name) - (declared is not None)
    if declared == num_frames:
        return data[offset:] if offset > start else None  # libsndfile needs the frame at the beginning
    if declared is not None and declared > num_frames + 1:  # + 1 because some programs also count the header frame
        raise truncated(name, f"only {num_frames} of {declared} frames are present")
    audio = offset if declared is None else offset + _mp3_frame_length(first[:3])
    return _xing_header(first, num_frames) + data[audio:]


def _count_mp3_frames(data: bytes, offset: int, name: str) -> int:
    """Count the frames from `offset` on; skip tags and other bytes between frames."""
    kind = _mp3_kind(data[offset : offset + 3])
    lengths: dict[bytes, int] = {}  # cached, because an hour of audio has 140,000 frames but few different headers
    count = 0
    while offset >= 0:
        header = data[offset : offset + 3]
        length = lengths.get(header)
        if length is None:
            length = lengths[header] = _mp3_frame_length(header) if _mp3_kind(header) == kind else 0
        if offset + length > len(data) or header in (b"\xff", b"\xff" + kind[:1]):
            raise truncated(name, f"its last frame, number {count + 1}, is cut off")
        if length:
            count += 1
            offset += length
        else:
            offset = _next_mp3_frame(data, offset, len(data), kind)
    return count


def _next_mp3_frame(data: bytes, offset: int, limit: int, kind: bytes | None = None) -> int:
    """Return the position of the next frame that is followed by a frame of its kind or by the end of `data`; -1: none.

    Args:
        data: content of the file.
        offset: where the search starts.
        limit: where the search ends.
        kind: required version, layer and sample rate, from `_mp3_kind`; None: any.
    """
    for match in _MP3_HEADER.finditer(data, offset, limit):
        length, own_kind = _mp3_frame_length(match[0]), _mp3_kind(match[0])
        after = match.start() + length
        followed = after == len(data) or _mp3_kind(data[after : after + 3]) == own_kind
        if length and followed and kind in (None, own_kind):
            return match.start()
    return -1


def _mp3_kind(header: bytes) -> bytes:
    """Return the bits that all frame headers of a file share (version, layer, sample rate); b"" for other bytes."""
    return bytes((header[1] | 1, header[2] & 0x0C)) if _MP3_HEADER.match(header) else b""


def _mp3_frame_length(header: bytes) -> int:
    """Return the length in bytes of the frame with this header; 0 if the bytes are not a header."""
    if not _MP3_HEADER.match(header) or header[2] & 0x0C == 0x0C:
        return 0
    divisor = {3: 1, 2: 2, 0: 4}[
        header[1] >> 3 & 3
    ]  # versions 2 and 2.5 have half and a quarter of the sample rates of version 1
    rate = (44100, 48000, 32000)[header[2] >> 2 & 3] // divisor
    kbits = (_MP3_KBITS if divisor == 1 else _MP3_KBITS_LOW)[(header[2] >> 4) - 1]
    return (144000 if divisor == 1 else 72000) * kbits // rate + (header[2] >> 1 & 1)


def _xing_position(header: bytes) -> int:
    """Return the position of a Xing header in a frame: after the frame's header (four bytes) and side information."""
    mono, version1 = header[3] >> 6 == 3, bool(header[1] & 8)
    return 4 + ((17 if mono else 32) if version1 else (9 if mono else 17))


def _xing_frames(frame: bytes) -> int | None:
    """Return the number of frames that a file's first frame declares; None if it has no Xing, Info or VBRI header.

    The result is 0 if the header declares no number, or is a VBRI header, which is not supported.
    """
    if frame[36:40] == b"VBRI":
        return 0
    offset = _xing_position(frame) if len(frame) == 64 else 0
    if frame[offset : offset + 4] not in (b"Xing", b"Info"):
        return None
    flags, num_frames = struct.unpack_from(">II", frame, offset + 4)
    return num_frames if flags & 1 else 0


def _xing_header(first: bytes, num_frames: int) -> bytes:
    """Return a frame whose Xing header declares `num_frames`, to be inserted before a file's first frame."""
    # Index 8 means 112 or 64 kbit/s. The frame is then longer than 120 bytes; mpg123 ignores Xing headers in shorter
    # frames.
    bit_rate = 8 << 4
    header = bytes((0xFF, first[1] | 1, bit_rate | first[2] & 0x0C, first[3]))
    frame = header.ljust(_xing_position(header), b"\0") + b"Xing" + struct.pack(">II", 1, num_frames)
    return frame.ljust(_mp3_frame_length(header[:3]), b"\0")
