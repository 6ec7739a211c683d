"""Audio of MP4 (M4A) and WebM files, by PyAV (the extra `media`), whose wheel contains FFmpeg."""

import functools
import io
import logging
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from asr.base.audio.containers import TAGS, truncated, unexpected
from asr.errors import AudioError, how_to_install, one_line

# FFmpeg's names of decoders. No other decoder is opened, because a damaged video track must not cost time or memory.
CODECS = ("aac", "ac3", "alac", "flac", "mp3float", "opus", "pcm_f32le", "pcm_s16be", "pcm_s16le", "vorbis")
MIN_GAP_SECONDS = 0.1  # a recorder's timestamps jump by less even if no audio is missing: no silence within a word
MAX_DRIFT_SECONDS = 0.5  # maximum sum of such jumps, for example of lost packets
MAX_SILENCE_SECONDS = 24 * 3600.0  # maximum sum of gaps; limits the time that a malicious file can take
_SILENCE_SAMPLES = 1 << 16  # samples of silence made at a time
# Boxes of the outermost level; if one of them is not complete, the file is truncated.
_BOXES = {
    *(b"ftyp", b"moov", b"mdat", b"moof", b"mfra", b"free", b"skip", b"wide", b"pnot", b"sidx", b"ssix", b"styp"),
    *(b"uuid", b"meta", b"udta", b"pdin", b"emsg", b"prft"),
}
_FIRST_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")
_MAX_BOXES = 1 << 18  # an MP4 file from a recorder has one or two boxes for each second
# A table of packets of one length (their length and number), or a run of packets of a fragment (their number).
_TABLE = re.compile(rb"(?=stsz.{4}(.{4})(.{4})|trun.{4}(.{4}))", re.DOTALL)
_COMPRESSED = re.compile(rb"cmov.{4}dcom", re.DOTALL)
_MAX_ELEMENTS = 1 << 22  # a WebM file has about a hundred elements for each second
_EBML, _SEGMENT, _CLUSTER = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67", b"\x1f\x43\xb6\x75"
_PARENTS = (_SEGMENT, _CLUSTER)
# The header, the other children of a segment (SeekHead ... Tags, Void, CRC-32), and those of a cluster (Timestamp ...).
_ELEMENTS = {
    *(_EBML, b"\x11\x4d\x9b\x74", b"\x15\x49\xa9\x66", b"\x16\x54\xae\x6b", b"\x1c\x53\xbb\x6b", b"\x10\x43\xa7\x70"),
    *(b"\x19\x41\xa4\x69", b"\x12\x54\xc3\x67", b"\xec", b"\xbf"),
    *(b"\xe7", b"\xa7", b"\xab", b"\xa3", b"\xa0", b"\xaf", b"\x58\x54"),
}

logger = logging.getLogger("asr.base.audio.media")


def media_kind(head: bytes) -> str | None:
    """Return FFmpeg's name of the format of a file with these first 8 bytes; None if it is neither MP4 nor WebM.

    QuickTime files of before 2001 begin with another box than ftyp.
    """
    return "mov" if head[4:8] in _FIRST_BOXES else "matroska" if head[:4] == _EBML else None


class MediaSound:
    """The first audio track of an MP4 or WebM file, with the attributes of a soundfile.SoundFile.

    The samples are on the time line that a player shows: without the encoder's delay, which the file declares (an edit
    list, a codec delay), and with silence where the track begins after the video, or has a gap. No header is trusted
    for the length: the file is decoded from its beginning to the last sample that is read.

    Args:
        file: the file; must remain open.
        kind: its format, from `media_kind`.
        name: name of the file, for errors.

    Attributes:
        samplerate: in Hz.
        channels: number of channels.
        frames: 2**63 - 1, which is libsndfile's number for an unknown length.
        format, subtype: "MEDIA", and the name of the codec.

    Raises:
        AudioError: PyAV is not installed, or the file is damaged or has no audio track that can be decoded; also
            during `read_block`.
    """

    format = "MEDIA"
    frames = (1 << 63) - 1

    def __init__(self, file: BinaryIO, kind: str, name: str) -> None:
        self._name = name
        self._open(file, kind)
        try:
            self._open_track()
        except BaseException:
            self._media.close()
            raise

    def _open(self, file: BinaryIO, kind: str) -> None:
        try:
            import av
        except ImportError:
            must = (
                f"{self._name}: MP4, M4A, QuickTime, Matroska and WebM files need the package av; it is not installed"
            )
            raise AudioError(f"{must}. {how_to_install('media')}") from None
        self._error, self._none, self._resampler = av.FFmpegError, av.stream.Discard.all, av.AudioResampler("fltp")
        (_check_boxes if kind == "mov" else _check_elements)(file, self._name)
        file.seek(0)
        try:
            options = {"codec_whitelist": ",".join(CODECS)}
            self._media = av.open(file, "r", format=kind, options=options, metadata_errors="replace")
        except (self._error, ValueError) as error:
            raise AudioError(f"{self._name}: must be audio that FFmpeg reads; got: {_reason(error)}.") from None

    def _open_track(self) -> None:
        tracks = self._media.streams.audio
        if not tracks:
            raise AudioError(f"{self._name}: must have an audio track; it has none.")
        self._track = tracks[0]
        codec = self._track.codec_context
        self.subtype = codec.name if codec is not None else "unknown"
        if codec is None or self.subtype not in CODECS:
            must = f"{self._name}: its audio must be coded as one of {', '.join(CODECS)}; got {self.subtype}"
            raise AudioError(f"{must}. Convert it first: ffmpeg -i FILE NEW.wav")
        if len(tracks) > 1:
            _note_tracks(self._name, len(tracks))
        for stream in self._media.streams:
            if stream.index != self._track.index:
                stream.discard = self._none  # its packets are not read
        self.samplerate, self.channels = codec.sample_rate, codec.channels
        self._samples = self._decode()
        self._rest = next(self._samples, np.zeros((0, self.channels), np.float32))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._media.close()

    def seek(self, position: int) -> None:
        """Skip samples of a file of which nothing has been read; they are decoded, and memory holds a few of them."""
        while position and len(block := self.read_block(min(position, _SILENCE_SAMPLES))):
            position -= len(block)

    def read_block(self, num_samples: int) -> NDArray[np.float32]:
        """Return the next samples, (num_samples, channels); fewer at the end of the file."""
        blocks, missing = [self._rest[:num_samples]], num_samples - len(self._rest)
        self._rest = self._rest[num_samples:]
        while missing > 0 and (block := next(self._samples, None)) is not None:
            blocks.append(block[:missing])
            self._rest = block[missing:]
            missing -= len(block)
        return np.concatenate(blocks)

    def _decode(self) -> Iterator[NDArray[np.float32]]:
        """Yield blocks (samples, channels); silence replaces what is missing between timestamps."""
        begin = self._media.start_time
        position = silence = 0
        end = 0.0  # of the previous frame, by its timestamp
        for block, seconds in self._frames():
            if begin is None:
                begin = round(seconds * 1_000_000)
            gap = round((seconds - begin / 1_000_000) * self.samplerate) - position
            is_late = seconds - end > MIN_GAP_SECONDS or gap > MAX_DRIFT_SECONDS * self.samplerate
            if gap > 0 and (is_late or position == 0):
                silence += gap
                if silence > MAX_SILENCE_SECONDS * self.samplerate:
                    raise truncated(self._name, f"its timestamps leave {silence / self.samplerate:.0f} s without audio")
                for start in range(0, gap, _SILENCE_SAMPLES):
                    yield np.zeros((min(_SILENCE_SAMPLES, gap - start), self.channels), np.float32)
                position += gap
            yield block
            position += len(block)
            end = seconds + len(block) / self.samplerate

    def _frames(self) -> Iterator[tuple[NDArray[np.float32], float]]:
        """Yield the decoded frames (samples, channels), each with its timestamp in seconds."""
        last: tuple[NDArray[np.float32], float] | None = None
        duration = None  # of the last packet, in its time base
        try:
            for packet in self._media.demux(self._track):
                for frame in packet.decode():
                    if last is None:
                        self.samplerate, self.channels = frame.sample_rate, frame.layout.nb_channels
                    elif (frame.sample_rate, frame.layout.nb_channels) != (self.samplerate, self.channels):
                        must = f"{self._name}: must have one sample rate and number of channels"
                        raise AudioError(f"{must}; they change. Convert it first: ffmpeg -i FILE NEW.wav")
                    else:
                        yield last
                    parts = [part.to_ndarray() for part in self._resampler.resample(frame)]
                    samples: NDArray[np.float32] = np.concatenate(parts, axis=1)  # (channels, samples)
                    last, duration = (samples.T, frame.time or 0.0), packet.duration
        except self._error as error:
            raise truncated(self._name, f"decoding fails with: {_reason(error)}") from None
        if last is not None:
            is_exact = self._track.time_base == Fraction(1, self.samplerate)
            yield last[0][: duration if is_exact else None], last[1]  # MP4 shortens the last packet, FFmpeg does not


def _reason(error: Exception) -> str:
    """Return FFmpeg's message without the name of the file, which is a number."""
    return one_line(getattr(error, "strerror", None) or error)


def _check_boxes(file: BinaryIO, name: str) -> None:
    """Check that no box of an MP4 file ends after the file, and that its tables declare no more bytes than it has.

    FFmpeg needs 36 bytes of memory for each packet that a table declares, and a table of 20 bytes can declare billions.

    *Source*: ISO/IEC 14496-12, sections 4.2, 8.7.3 and 8.8.8.
    """
    size = file.seek(0, io.SEEK_END)
    start = num_boxes = num_declared = 0
    num_headers = num_fragments = 0  # FFmpeg reads the first header only
    lacks_audio = False  # whether a fragment's tables have been read, and not its audio
    while start < size:
        file.seek(start)
        head = file.read(16)
        kind, length = head[4:8], int.from_bytes(head[:4], "big")
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        elif length == 0 and kind in _BOXES:
            length = size - start
        num_boxes += 1
        if num_boxes > _MAX_BOXES:
            break
        if length < 8 or start + length > size:
            if _begins_box(head) or unexpected(file, start, size)[0]:
                what = f"only {size - start} of {length} bytes of the box {kind.decode('latin-1')!a} are present"
                raise truncated(name, what)
            break  # a tag, or other bytes that may follow the audio
        num_headers += kind == b"moov"
        num_fragments += kind == b"moof"
        lacks_audio = kind == b"moof" or (lacks_audio and kind != b"mdat")
        if kind != b"mdat":
            file.seek(start)
            num_declared += _declared_bytes(file.read(length))
        start += length
    if num_boxes > _MAX_BOXES:
        raise truncated(name, f"it has more than {_MAX_BOXES} boxes")
    if num_headers > 1 and not num_fragments:
        must = f"{name}: must hold one recording; it holds several in a row, and only the first would be decoded"
        raise AudioError(f"{must}. Copy or create each recording again.")
    if lacks_audio:
        raise truncated(name, "the audio of its last fragment is missing")
    if num_declared > size:
        raise truncated(name, f"its tables declare more audio than its {size} bytes hold")


def _begins_box(head: bytes) -> bool:
    """Return whether the last bytes of a file are the beginning of a box's length and type."""
    if len(head) > 4:
        return any(box.startswith(head[4:8]) for box in _BOXES)
    return head[:1] == b"\0" and any(head)


def _declared_bytes(box: bytes) -> int:
    """Return the least number of bytes that the packets of a box's tables take: a run's packet may have any length."""
    if _COMPRESSED.search(box):
        return 1 << 62  # a compressed header may expand to any size; QuickTime wrote them before 2005
    tables = (map(int.from_bytes, match.groups(b"")) for match in _TABLE.finditer(box))
    return sum(length * count + run for length, count, run in tables)


def _check_elements(file: BinaryIO, name: str) -> None:
    """Check that elements follow each other in a WebM file without gaps, because FFmpeg skips damage without an error.

    *Source*: RFC 8794, sections 4 to 6; RFC 9559, section 5.1.
    """
    size = file.seek(0, io.SEEK_END)
    start, end, num_elements = 0, size, 0
    while start < end:
        file.seek(start)
        head = file.read(12)
        id_bytes = 9 - head[0].bit_length()
        identifier = head[:id_bytes]
        length_bytes = 9 - (head[id_bytes : id_bytes + 1] or b"\0")[0].bit_length()
        content = start + id_bytes + length_bytes
        unknown = (1 << 7 * length_bytes) - 1
        length = int.from_bytes(head[id_bytes : id_bytes + length_bytes]) & unknown
        num_elements += 1
        if (identifier not in _ELEMENTS and identifier not in _PARENTS) or length_bytes > 8:
            if start and head.startswith(TAGS):
                break
            raise truncated(name, f"no element begins at byte {start}")
        if num_elements > _MAX_ELEMENTS:
            raise truncated(name, f"it has more than {_MAX_ELEMENTS} elements")
        is_open = identifier in _PARENTS and length == unknown  # a live recording
        if content + (0 if is_open else length) > size:
            raise truncated(name, f"only {size - content} of {length} bytes of the element at byte {start} are present")
        if identifier == _SEGMENT and not is_open:
            end = content + length  # other data may follow
        start = content if identifier in _PARENTS else content + length


@functools.cache
def _note_tracks(name: str, num_tracks: int) -> None:
    """Log, once for each file, that only one track is read."""
    logger.warning("%s: has %d audio tracks; only the first is read.", name, num_tracks)
