"""Load audio files as waveforms; no other module decodes audio or mixes channels down.

libsndfile decodes a truncated WAV, Ogg or MP3 file without an error, and decodes only a part of some intact files.
`containers.py` and `flac.py` therefore check the headers, so that a file is either decoded completely or refused.
`media.py` reads the formats that libsndfile lacks.
"""

import functools
import io
import logging
import math
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray

from asr.base.audio.containers import Container, read_container, truncated
from asr.base.audio.encode import anonymous_file
from asr.base.audio.find import reason_of_file, shown_path
from asr.base.audio.media import MediaSound, media_kind
from asr.base.audio.resampling import resampled
from asr.base.storage.location import is_url
from asr.base.storage.store import read_whole
from asr.errors import AudioError

END_TOLERANCE_SECONDS = 0.02  # most manifests round offset and duration to 10 ms
LEAD_IN_SECONDS = 1.0  # MP3 and Opus frames depend on previous ones: MP3's bit reservoir reaches back at most 0.6 s
BLOCK_SAMPLES = 1 << 18  # samples decoded at a time, so that a wrong length in a header cannot exhaust memory
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 1000, 1_000_000  # a header with other values is damaged
MAX_SAMPLE = 2.0**24  # float files may contain unscaled 24-bit integers; larger values mean damage and would overflow
# Warn if the channels' mean has less than this fraction of the power that it would have with independent channels.
CANCELLED = 0.01
SAMPLES_MUST = f"samples must lie between -{MAX_SAMPLE:.0f} and {MAX_SAMPLE:.0f}"

logger = logging.getLogger("asr.base.audio.load")


class AudioInfo(NamedTuple):
    """Format and length of a file; `num_samples` is the number of samples of each channel."""

    sample_rate: int
    num_channels: int
    num_samples: int


def load_waveform(
    path: str | Path,
    sample_rate: int,
    *,
    offset: float | None = None,
    duration: float | None = None,
    content: bytes | None = None,
) -> torch.Tensor:
    """Decode a file, or a segment of it, mix it down to mono (the mean of its channels) and resample it.

    The segment is from `offset` to `offset + duration` seconds, each rounded to the nearest sample of the file, so
    adjacent segments neither share nor lose samples. The segment is resampled as if silence surrounded it. Only the
    segment is decoded, and at most one second or one Ogg page before it; MP4 and WebM are decoded from their beginning,
    because their decoders' states depend on everything before. The headers are always checked; for this, Ogg
    and MP3 files are read as a whole, but not decoded. So is a FLAC file; one of 4 MiB or more only once in a process.

    Samples of float files may exceed [-1, 1], up to MAX_SAMPLE; nothing is scaled or clipped.

    A truncated file is refused, with these exceptions:

    * WAV, AIFF, W64 or CAF without a declared length (as written to a pipe);
    * FLAC without a declared length, cut exactly between two frames;
    * MP3 without a Xing header, cut exactly between two frames;
    * MP3 with a Xing header, if exactly its last frame is missing;
    * joined Ogg streams, cut exactly between two streams;
    * MP4 in fragments, cut exactly between two fragments;
    * WebM without a declared length (as a browser's recorder writes it), cut exactly between two blocks;
    * other formats (NIST, ...).

    A file that holds more audio than its header declares is refused, too: FLAC, WAV, AIFF, CAF and AU, several of them
    (or MP4 without fragments) joined in one file, and joined Ogg streams. Tags, chunks without audio, zeros and at most
    128 other bytes may follow the audio, also in MP4; tags in WebM. Other formats, and joined MP3 files, are read to
    the end of the file.

    Args:
        path: path or URL of a WAV, FLAC, Ogg (Vorbis, Opus, FLAC) or MP3 file, of another format of libsndfile, or, if
            the extra `media` is installed, of an MP4 (M4A, QuickTime) or WebM (Matroska) file. A URL is fetched as a
            whole, even if only a segment is decoded.
        sample_rate: sample rate of the result, in Hz.
        offset: beginning of the segment, in seconds; None means 0.
        duration: length of the segment, in seconds; None: to the end of the file. A segment that exceeds the end
            of the file by at most END_TOLERANCE_SECONDS is cut at the end of the file.
        content: content of the file, if it has been read already; `path` is then used only in error messages.

    Shapes:
        returns: (S,) float32, with S = ceil(samples * sample_rate / the file's sample rate).

    Raises:
        AudioError: the file is missing, unreadable, empty, not audio or truncated, has samples that are NaN, infinite
            or beyond MAX_SAMPLE, or does not contain the segment.
        StoreError: a URL cannot be fetched.
    """
    blocks = list(
        stream_waveform(path, sample_rate, offset=offset, duration=duration, block_seconds=math.inf, content=content)
    )
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def stream_waveform(
    path: str | Path,
    sample_rate: int,
    *,
    offset: float | None = None,
    duration: float | None = None,
    block_seconds: float = 5.0,
    content: bytes | None = None,
) -> Iterator[torch.Tensor]:
    """Decode like `load_waveform`, but block by block; the concatenated blocks are bit-identical to its result.

    The file is decoded once, from front to back. Memory holds one block, whatever the length of the audio, with these
    exceptions: a file at a URL is fetched as a whole; an Ogg or MP3 file is in memory while its headers are checked;
    a file whose header must be corrected, or has a tag before it, is in memory until it has been decoded.

    An error is raised where it occurs in the file, after the blocks before it have been yielded. After the first
    unusable sample no more blocks are yielded; the rest is decoded only to count the unusable samples.

    Args:
        path, sample_rate, offset, duration, content: as for `load_waveform`.
        block_seconds: length of a block, between one sample and BLOCK_SAMPLES; resampled blocks vary in length.

    Shapes:
        yields: (S,) float32 each, never empty.

    Raises:
        AudioError, StoreError: as for `load_waveform`, all during the iteration.
    """
    name = shown_path(path)
    for key, seconds in (("offset", offset), ("duration", duration)):
        if seconds is not None and not 0 <= seconds < math.inf:
            raise AudioError(f"{name}: {key} must be a number of seconds, at least 0; got {seconds}.")
    with _opened(path, content) as (sound, container):
        rate = sound.samplerate
        start = round((offset or 0.0) * rate)
        stop = None if duration is None else round(((offset or 0.0) + duration) * rate)
        block_samples = max(1, round(min(block_seconds * rate, BLOCK_SAMPLES)))
        blocks = _decode(sound, start, stop, container.last_page_samples, block_samples, name)
        for block in resampled(_checked(blocks, sound, start, stop, name), rate, sample_rate):
            _note_conversion(rate, sound.channels, sample_rate)
            yield block


def cancelled_power(path: str | Path, start: float, duration: float, content: bytes | None = None) -> float:
    """Return the share of the channels' power that is lost when a segment is mixed down to mono, from 0 to 1.

    Args:
        path, content: as for `load_waveform`.
        start: beginning of the segment, in seconds.
        duration: length of the segment, in seconds.

    Raises:
        AudioError, StoreError: as for `load_waveform`.
    """
    mixed = separate = 0.0
    with _opened(path, content) as (sound, container):
        begin, end = (round(seconds * sound.samplerate) for seconds in (start, start + duration))
        for block in _channels(sound, begin, end, container.last_page_samples, BLOCK_SAMPLES):
            mixed += float(block.mean(dim=1).square().sum())
            separate += float(block.square().mean(dim=1).sum())
    return 1.0 - mixed / separate if separate > 0 else 0.0


def unusable_samples(waveform: torch.Tensor) -> torch.Tensor:
    """Return the positions of samples that are NaN, infinite or beyond MAX_SAMPLE; they would make features infinite.

    Shapes:
        waveform: (S,) float32.
        returns: positions of these samples (N,), in order.
    """
    if float(waveform.dot(waveform)) <= MAX_SAMPLE**2:  # fast path: no sample exceeds the square root of the energy
        return torch.zeros(0, dtype=torch.int64)
    return (~(waveform.abs() <= MAX_SAMPLE)).nonzero()[:, 0]


def audio_info(path: str | Path, content: bytes | None = None, max_seconds: float = math.inf) -> AudioInfo:
    """Return the format and length of a file from its headers, which are checked as in `load_waveform`.

    A file whose headers have no length is decoded to count its samples.

    Args:
        path: path or URL of the file.
        content: content of the file, if it has been read already; `path` is then used only in error messages.
        max_seconds: the count ends at most a second after this length; the number of samples is then too small.

    Raises:
        AudioError: as for `load_waveform`, for faults visible without decoding.
        StoreError: a URL cannot be fetched.
    """
    with _opened(path, content) as (sound, _):
        num_samples = _num_samples(sound)
        if num_samples is None:
            num_samples = 0
            for block in _channels(sound, 0, None, 0, min(sound.samplerate, BLOCK_SAMPLES)):
                num_samples += len(block)
                if num_samples > max_seconds * sound.samplerate:
                    break
        if num_samples == 0:
            raise AudioError(f"{shown_path(path)}: must contain audio; it has 0 samples.")
        return AudioInfo(sound.samplerate, sound.channels, num_samples)


def file_sample_rate(path: str | Path) -> int:
    """Return the sample rate of a file in Hz, without decoding it to measure its length.

    Raises:
        AudioError, StoreError: as for `audio_info`.
    """
    with _opened(path) as (sound, _):
        return int(sound.samplerate)


# ---- decoding, mixing down, checking


class _Sound(soundfile.SoundFile):
    """A SoundFile that claims not to be seekable, so that soundfile does not seek after each read.

    Such a seek fails at the end of a FLAC file without a declared length.
    """

    def seekable(self) -> bool:
        return False

    def read_block(self, num_samples: int) -> NDArray[np.float32]:
        """Return the next samples, (num_samples, channels); fewer at the end of the file."""
        samples: NDArray[np.float32] = self.read(num_samples, dtype="float32", always_2d=True)
        return samples


Sound = _Sound | MediaSound


@contextmanager
def _opened(path: str | Path, content: bytes | None = None) -> Iterator[tuple[Sound, Container]]:
    """Open a file and check its headers; errors of libsndfile, on opening or while decoding, become AudioError."""
    name = shown_path(path)
    if content is None and is_url(path):
        content = read_whole(str(path))
    if content == b"":
        raise AudioError(f"{name}: must be an audio file; it is empty (0 bytes).")
    with ExitStack() as files:
        file = files.enter_context(_open_file(path, name) if content is None else anonymous_file(content))
        kind = media_kind(file.read(8))
        file.seek(0)
        container = Container() if kind else read_container(file, name)
        if container.mended is not None:
            file = files.enter_context(anonymous_file(container.mended))
        file.seek(0)
        with MediaSound(file, kind, name) if kind else _open_sound(file, name) as sound:
            if not MIN_SAMPLE_RATE <= sound.samplerate <= MAX_SAMPLE_RATE:
                limits = f"between {MIN_SAMPLE_RATE} and {MAX_SAMPLE_RATE} Hz"
                raise AudioError(f"{name}: sample rate must lie {limits}; got {sound.samplerate}.")
            try:
                yield sound, container
            except soundfile.LibsndfileError as error:
                raise truncated(name, f"decoding fails with: {reason_of_file(error)}") from None


def _open_sound(file: io.FileIO, name: str) -> _Sound:
    try:
        return _Sound(file.fileno(), closefd=False)
    except soundfile.LibsndfileError as error:
        must = f"{name}: must be audio that libsndfile reads; got: {reason_of_file(error)}"
        raise AudioError(f"{must}. Convert other audio first (ffmpeg -i FILE NEW.wav).") from None


def _open_file(path: str | Path, name: str) -> io.FileIO:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):  # opening a pipe without a writer would block
            file = open(path, "rb", buffering=0)  # noqa: SIM115  the caller closes it
            if os.fstat(file.fileno()).st_size > 0:
                return file
            file.close()
    except (OSError, ValueError) as error:  # ValueError: an impossible path, such as one with a null byte
        raise AudioError(f"{name}: must be a readable audio file; {reason_of_file(error)}.") from None
    kind = "empty (0 bytes)" if stat.S_ISREG(mode) else "a folder" if stat.S_ISDIR(mode) else "not a regular file"
    raise AudioError(f"{name}: must be an audio file; it is {kind}.")


def _num_samples(sound: Sound) -> int | None:
    """Return the number of samples of each channel; None if the header has no number (libsndfile reports 2**63 - 1)."""
    return int(sound.frames) if sound.frames < 1 << 62 else None


def _decode(
    sound: Sound, start: int, stop: int | None, last_page_samples: int, block_samples: int, name: str
) -> Iterator[torch.Tensor]:
    """Yield blocks (S,) of the mean over channels, from sample `start` to `stop`, at most to the end of the file."""
    power_mixed = power_separate = 0.0
    for block in _channels(sound, start, stop, last_page_samples, block_samples):
        mono = block[:, 0]  # (samples,)
        if sound.channels > 1:
            mono = block.mean(dim=1)
            power_mixed += float(mono.square().sum())
            power_separate += float(block.square().mean(dim=1).sum())
        yield mono
    if power_mixed * sound.channels < CANCELLED * power_separate:
        _warn_of_cancelled(name, 10 * math.log10(power_separate / max(power_mixed, 1e-30)))


def _channels(
    sound: Sound, start: int, stop: int | None, last_page_samples: int, block_samples: int
) -> Iterator[torch.Tensor]:
    """Yield blocks (samples, channels) from sample `start` to `stop`, at most to the end of the file."""
    end = sound.frames if stop is None else min(stop, sound.frames)
    position = _seek_point(sound, start, last_page_samples)
    try:
        if 0 < position < end:
            sound.seek(position)
    except soundfile.LibsndfileError:  # the file ends before `position`; the caller raises the error
        return
    skip = start - position
    while position < end:
        block = torch.from_numpy(sound.read_block(min(block_samples, end - position)))
        if not len(block):
            break
        position += len(block)
        if skip < len(block):
            yield block[skip:]
        skip = max(0, skip - len(block))


@functools.cache
def _warn_of_cancelled(name: str, decibels: float) -> None:
    """Warn, once for each file, that mixing down cancels the speech."""
    must = f"{name}: channels must not cancel each other out, as they do if one of them is inverted"
    logger.warning("%s; their mean is %.0f dB weaker than one channel. Use only one channel.", must, decibels)


def _seek_point(sound: Sound, start: int, last_page_samples: int) -> int:
    """Return the sample at which decoding must start, so that samples from `start` on are as in a full decoding."""
    if sound.subtype == "VORBIS":  # libsndfile 1.2.2 seeks to a wrong position within the last page
        return max(0, min(start, sound.frames - last_page_samples))
    if sound.subtype == "OPUS" or sound.format == "MP3":
        return max(0, start - round(LEAD_IN_SECONDS * sound.samplerate))
    return start


def _checked(
    blocks: Iterator[torch.Tensor], sound: Sound, start: int, stop: int | None, name: str
) -> Iterator[torch.Tensor]:
    """Yield the blocks before the first unusable sample; then raise an error if samples are missing or unusable."""
    rate, known = sound.samplerate, _num_samples(sound)
    if known is not None:
        _count_wanted(start, stop, known, known, rate, name)
    num_decoded, num_bad, first_bad = 0, 0, ""
    for block in blocks:
        bad = unusable_samples(block)
        if len(bad) and num_bad == 0:
            first_bad = f"{float(block[bad[0]]):g} at {(start + num_decoded + int(bad[0])) / rate:.3f} s"
        num_bad += len(bad)
        num_decoded += len(block)
        if num_bad == 0:
            yield block
    wanted = _count_wanted(start, stop, start + num_decoded if known is None else known, known, rate, name)
    if num_decoded < wanted:
        raise truncated(name, f"{num_decoded} of {wanted} samples can be decoded")
    if num_bad:
        raise AudioError(f"{name}: {SAMPLES_MUST}; {num_bad} do not, the first {first_bad}.")


def _count_wanted(start: int, stop: int | None, available: int, known: int | None, rate: int, name: str) -> int:
    """Return the number of samples of a segment in a file of `available` samples.

    Args:
        known: number of samples according to the file's header; None: the header has no number.
    """
    if available == 0:
        raise AudioError(f"{name}: must contain audio; it has 0 samples.")
    segment = f"the segment from {start / rate:.3f} s to {'its end' if stop is None else f'{stop / rate:.3f} s'}"
    past_end = stop is not None and stop - available > END_TOLERANCE_SECONDS * rate
    if past_end or start >= available:
        length = "less audio" if known is None else f"{known / rate:.3f} s"
        raise AudioError(f"{name}: {segment} must lie within the file; the file has {length}.")
    wanted = (available if stop is None else min(stop, available)) - start
    if wanted <= 0:
        raise AudioError(f"{name}: {segment} must contain audio; it is shorter than one sample.")
    return wanted


@functools.cache
def _note_conversion(source_rate: int, num_channels: int, sample_rate: int) -> None:
    """Log how files with this rate and number of channels are converted; the cache suppresses repetitions."""
    steps = []
    if num_channels > 1:
        steps.append("mixed down to mono")
    if source_rate != sample_rate:
        steps.append(f"resampled to {sample_rate} Hz")
    if steps:
        channels = f"{num_channels} channel{'s' * (num_channels > 1)}"
        logger.warning("audio of %d Hz with %s is %s.", source_rate, channels, " and ".join(steps))
