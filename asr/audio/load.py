"""Audio files to waveforms: the only file that decodes or mixes down.

libsndfile decodes, but it returns what is left of a truncated WAV, Ogg or MP3 without a word, and not all of some
whole ones. So `containers.py` reads the headers too, and a file is used whole or refused.
"""

import functools
import io
import logging
import math
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import soundfile
import torch

from asr.audio.containers import Container, read_container, truncated
from asr.audio.resampling import resampled
from asr.errors import AudioError
from asr.storage.location import file_name, is_url, printable_url
from asr.storage.store import list_prefix, read_whole

AUDIO_SUFFIXES = (".aif", ".aiff", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav")

END_TOLERANCE_SECONDS = 0.02  # manifests round offset and duration, mostly to 10 ms
LEAD_IN_SECONDS = 1.0  # MP3 and Opus frames need those before them: at most 0.6 s of MP3's bit reservoir
BLOCK_SAMPLES = 1 << 18  # decoded at most at a time, so that memory follows what is there, not what a header declares
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 1000, 1_000_000  # a header that says otherwise is damaged
MAX_SAMPLE = 2.0**24  # float files may hold 24-bit integers as they are; what is beyond is damaged, and would overflow
CANCELLED = 0.01  # power of the mean of channels, relative to what independent channels have
SAMPLES_MUST = f"samples must lie between -{MAX_SAMPLE:.0f} and {MAX_SAMPLE:.0f}"

logger = logging.getLogger("asr.audio.load")


class AudioInfo(NamedTuple):
    """What a file holds; `num_samples` counts each channel once."""

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
    """Decode a file, or a stretch of it, mixed down to mono (the mean of its channels) and resampled.

    The stretch is seconds `offset` to `offset + duration`, each rounded to the nearest sample of the file, so
    stretches that meet share no sample and lose none. It is resampled as if silence surrounded it. Only the stretch is
    decoded, plus at most a second or an Ogg page before it; the headers are checked in any case, and for that Ogg and
    MP3 files are read, though not decoded, from beginning to end.

    Float files may go beyond [-1, 1], up to MAX_SAMPLE; nothing is scaled or clipped.

    A truncated file is refused, with these exceptions: files that declare no length, as written to a pipe (WAV, AIFF,
    W64, CAF anywhere; FLAC exactly between two frames); an MP3 exactly between two frames, if it has no Xing header,
    or exactly before its last; joined Ogg streams exactly between two; formats other than these (AU, NIST, ...).

    Args:
        path: or URL of WAV, FLAC, Ogg (Vorbis, Opus), MP3 or whatever else libsndfile reads. A URL is fetched whole,
            even if only a stretch of it is decoded.
        sample_rate: of the result, in Hz.
        offset: where the stretch starts, in seconds; None means 0.
        duration: its length in seconds; None means to the end of the file. It may reach END_TOLERANCE_SECONDS past
            the end of the file and is cut there.
        content: of the file, if it has been read already; `path` then names it in errors.

    Shapes:
        returns: (S,) float32, with S = ceil(samples * sample_rate / the file's sample rate).

    Raises:
        AudioError: for a file that is missing, unreadable, empty, not audio or truncated, that holds samples that are
            NaN, infinite or beyond MAX_SAMPLE, or that does not hold the stretch.
        StoreError: what a URL names cannot be fetched.
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
    """Decode as `load_waveform` does, block by block: joined, the blocks equal its result to the bit.

    The file is decoded once, from front to back, and memory is bounded by the block, whatever the length; but an Ogg
    file is held while its headers are checked, and an MP3 file, or a WAV without a length, to the end.

    What is wrong with a file is raised when it is met, and that may be after blocks that were good. Once a sample
    cannot be used no more blocks come: the rest is decoded to count how many there are.

    Args:
        path: as for `load_waveform`, like sample_rate, offset, duration and content.
        block_seconds: how much is decoded at a time, between one sample and BLOCK_SAMPLES; what is resampled comes a
            second at a time.

    Shapes:
        yields: (S,) float32 each, never empty.

    Raises:
        AudioError, StoreError: as `load_waveform`; all of them while iterating.
    """
    name = _one_line(path)
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


def unusable_samples(waveform: torch.Tensor) -> torch.Tensor:
    """Find the samples that are NaN, infinite or beyond MAX_SAMPLE, of which features would not be finite.

    Shapes:
        waveform: (S,) float32.
        returns: their positions (N,), in order.
    """
    if float(waveform.dot(waveform)) <= MAX_SAMPLE**2:  # so each is; far quicker than to look at each
        return torch.zeros(0, dtype=torch.int64)
    return (~(waveform.abs() <= MAX_SAMPLE)).nonzero()[:, 0]


def audio_info(path: str | Path, content: bytes | None = None) -> AudioInfo:
    """Say what a file holds without decoding it, as far as its headers know; they are checked as for loading.

    Args:
        path: or URL of the file.
        content: of the file, if it has been read already; `path` then names it in errors.

    Raises:
        AudioError: as `load_waveform`, for faults that show without decoding.
        StoreError: what a URL names cannot be fetched.
    """
    with _opened(path, content) as (sound, _):
        num_samples = _num_samples(sound)
        if num_samples is None:
            num_samples = sum(len(block) for block in _decode(sound, 0, None, 0, BLOCK_SAMPLES, _one_line(path)))
        if num_samples == 0:
            raise AudioError(f"{_one_line(path)}: must hold sound; it holds 0 samples.")
        return AudioInfo(sound.samplerate, sound.channels, num_samples)


def declared_seconds(path: str | Path) -> float | None:
    """Say how long a file is by its headers alone; None if they do not say, and only decoding would tell.

    No more than this can be decoded from it, whatever it holds.

    Raises:
        AudioError: as `load_waveform`, for faults that show without decoding.
    """
    with _opened(path) as (sound, _):
        num_samples = _num_samples(sound)
        return None if num_samples is None else num_samples / sound.samplerate


def find_audio_objects(url: str) -> list[str]:
    """List a URL itself, if it ends as an audio file does (AUDIO_SUFFIXES), or the audio files below it, sorted.

    Raises:
        AudioError: no audio lies below it.
        StoreError: it cannot be listed.
    """
    if file_name(url).lower().endswith(AUDIO_SUFFIXES):
        return [url]
    urls = [found for found, _ in list_prefix(url) if found.lower().endswith(AUDIO_SUFFIXES)]
    if not urls:
        raise AudioError(
            f"{_one_line(url)}: must hold audio files ({' '.join(AUDIO_SUFFIXES)}); there are none below it."
        )
    return urls


def find_audio(path: str | Path) -> list[Path]:
    """List a file itself, or the audio files (by AUDIO_SUFFIXES) anywhere below a folder, sorted by path.

    Hidden files and folders are passed over (macOS leaves a `._x.wav` beside `x.wav`), and links to folders are not
    followed, as they may lead in circles.

    Raises:
        AudioError: if there is no such path, a folder cannot be listed, or no audio lies below it.
    """
    name = _one_line(path)
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError) as error:
        raise AudioError(f"{name}: must be an audio file or a folder of them; {_reason(error)}.") from None
    if not is_folder:
        return [Path(path)]

    def refuse(error: OSError) -> None:
        raise AudioError(f"{_one_line(error.filename)}: folder cannot be listed; {_reason(error)}.")

    paths: list[Path] = []
    for folder, subfolders, files in os.walk(path, onerror=refuse):
        subfolders[:] = [subfolder for subfolder in subfolders if not subfolder.startswith(".")]
        paths += [
            Path(folder, file) for file in files if file.lower().endswith(AUDIO_SUFFIXES) and not file.startswith(".")
        ]
    if not paths:
        raise AudioError(f"{name}: must hold audio files ({' '.join(AUDIO_SUFFIXES)}); there are none below it.")
    return sorted(paths)


# ---- decoding, mixing down, checking


class _Sound(soundfile.SoundFile):
    """A SoundFile that only reads on: soundfile's seek after each read fails at the end of FLAC of unknown length."""

    def seekable(self) -> bool:
        return False


@contextmanager
def _opened(path: str | Path, content: bytes | None = None) -> Iterator[tuple[_Sound, Container]]:
    """Open a file whose headers hold; whatever libsndfile says against it, now or while decoding, is an AudioError."""
    name = _one_line(path)
    if content is None and is_url(path):
        content = read_whole(str(path))
    with _open_file(path, name) if content is None else _in_memory(content, name) as file:
        container = read_container(file, os.fstat(file.fileno()).st_size, name)
        file.seek(0)
        try:
            source = file.fileno() if container.mended is None else io.BytesIO(container.mended)
            sound = _Sound(source, closefd=False)
        except soundfile.LibsndfileError as error:
            raise AudioError(f"{name}: must be audio that libsndfile reads; it says: {_reason(error)}.") from None
        with sound:
            if not MIN_SAMPLE_RATE <= sound.samplerate <= MAX_SAMPLE_RATE:
                limits = f"between {MIN_SAMPLE_RATE} and {MAX_SAMPLE_RATE} Hz"
                raise AudioError(f"{name}: sample rate must lie {limits}; got {sound.samplerate}.")
            try:
                yield sound, container
            except soundfile.LibsndfileError as error:
                raise truncated(name, f"decoding it ends with: {_reason(error)}") from None


def _open_file(path: str | Path, name: str) -> io.FileIO:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):  # others are not opened: a pipe without a writer would block
            file = open(path, "rb", buffering=0)  # noqa: SIM115  the caller closes it
            if os.fstat(file.fileno()).st_size > 0:
                return file
            file.close()
    except (OSError, ValueError) as error:  # ValueError: a path that cannot be, such as one with a null byte
        raise AudioError(f"{name}: must be a readable audio file; {_reason(error)}.") from None
    kind = "empty (0 bytes)" if stat.S_ISREG(mode) else "a folder" if stat.S_ISDIR(mode) else "not a regular file"
    raise AudioError(f"{name}: must be an audio file; it is {kind}.")


def _in_memory(content: bytes, name: str) -> io.FileIO:
    """Make a file without a name, in memory where Linux can: libsndfile reads it as it reads any other."""
    if not content:
        raise AudioError(f"{name}: must be an audio file; it is empty (0 bytes).")
    if hasattr(os, "memfd_create"):
        file = io.FileIO(os.memfd_create("audio", os.MFD_CLOEXEC), "r+b")
    else:
        file = tempfile.TemporaryFile("w+b", buffering=0)  # noqa: SIM115  the caller closes it
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
    file.seek(0)
    return file


def _num_samples(sound: _Sound) -> int | None:
    """Number of samples of each channel; None for a stream whose header does not say (libsndfile: 2**63 - 1)."""
    return int(sound.frames) if sound.frames < 1 << 62 else None


def _decode(
    sound: _Sound, start: int, stop: int | None, last_page_samples: int, block_samples: int, name: str
) -> Iterator[torch.Tensor]:
    """The mean over channels of samples `start` to `stop`, or to the end of the file if that comes first. (S,) each"""
    end = sound.frames if stop is None else min(stop, sound.frames)
    position = _seek_point(sound, start, last_page_samples)
    try:
        if 0 < position < end:
            sound.seek(position)
    except soundfile.LibsndfileError:  # the file ends before: the caller finds too few samples
        return
    skip = start - position
    power_mixed = power_separate = 0.0
    while position < end:
        samples = sound.read(min(block_samples, end - position), dtype="float32", always_2d=True)
        block = torch.from_numpy(samples)  # (samples, channels)
        if not len(block):
            break
        position += len(block)
        mono = block[:, 0]  # (samples,)
        if sound.channels > 1:
            mono = block.mean(dim=1)
            power_mixed += float(mono.square().sum())
            power_separate += float(block.square().mean(dim=1).sum())
        if skip < len(block):
            yield mono[skip:]
        skip = max(0, skip - len(block))
    if power_mixed * sound.channels < CANCELLED * power_separate:
        _warn_of_cancelled(name, 10 * math.log10(power_separate / max(power_mixed, 1e-30)))


@functools.cache
def _warn_of_cancelled(name: str, decibels: float) -> None:
    """Log, once for each file, that mixing down has lost what was said."""
    must = f"{name}: channels must not cancel each other out, as they do if one of them is inverted"
    logger.warning("%s; their mean is %.0f dB below them. Give one of its channels.", must, decibels)


def _seek_point(sound: _Sound, start: int, last_page_samples: int) -> int:
    """Where to start decoding so that sample `start` comes out as it does when the whole file is decoded."""
    if sound.subtype == "VORBIS":  # libsndfile 1.2.2 comes out elsewhere when it seeks within the last page
        return max(0, min(start, sound.frames - last_page_samples))
    if sound.subtype == "OPUS" or sound.format == "MP3":
        return max(0, start - round(LEAD_IN_SECONDS * sound.samplerate))
    return start


def _checked(
    blocks: Iterator[torch.Tensor], sound: _Sound, start: int, stop: int | None, name: str
) -> Iterator[torch.Tensor]:
    """Pass blocks on as long as all samples can be used; at the end, refuse what is not (nearly) all there."""
    rate, known = sound.samplerate, _num_samples(sound)
    if known is not None:
        _count_wanted(start, stop, known, known, rate, name)
    got, num_bad, first_bad = 0, 0, ""
    for block in blocks:
        bad = unusable_samples(block)
        if len(bad) and num_bad == 0:
            first_bad = f"{float(block[bad[0]]):g} at {(start + got + int(bad[0])) / rate:.3f} s"
        num_bad += len(bad)
        got += len(block)
        if num_bad == 0:
            yield block
    wanted = _count_wanted(start, stop, start + got if known is None else known, known, rate, name)
    if got < wanted:
        raise truncated(name, f"{got} of {wanted} samples can be decoded")
    if num_bad:
        raise AudioError(f"{name}: {SAMPLES_MUST}; {num_bad} do not, the first {first_bad}.")


def _count_wanted(start: int, stop: int | None, available: int, known: int | None, rate: int, name: str) -> int:
    """How many samples a stretch has in a file of `available` samples; `known` says whether its header tells that."""
    if available == 0:
        raise AudioError(f"{name}: must hold sound; it holds 0 samples.")
    stretch = f"the stretch from {start / rate:.3f} s to {'its end' if stop is None else f'{stop / rate:.3f} s'}"
    past_end = stop is not None and stop - available > END_TOLERANCE_SECONDS * rate
    if past_end or start >= available:
        length = "less" if known is None else f"{known / rate:.3f} s"
        raise AudioError(f"{name}: {stretch} must lie within the file; the file holds {length}.")
    wanted = (available if stop is None else min(stop, available)) - start
    if wanted <= 0:
        raise AudioError(f"{name}: {stretch} must hold sound; it is shorter than one sample.")
    return wanted


@functools.cache
def _note_conversion(source_rate: int, num_channels: int, sample_rate: int) -> None:
    """Log what is done to files of this kind, once for each kind (the cache sees to that)."""
    done = []
    if num_channels > 1:
        done.append("mixed down to mono")
    if source_rate != sample_rate:
        done.append(f"resampled to {sample_rate} Hz")
    if done:
        channels = f"{num_channels} channel{'s' * (num_channels > 1)}"
        logger.warning("audio of %d Hz, %s, is %s.", source_rate, channels, " and ".join(done))


def _one_line(path: str | Path) -> str:
    """A path as messages name it: as it is, or escaped and quoted if it would not print on one line."""
    text = printable_url(os.fsdecode(path))
    return text if text and text.isprintable() else repr(text)


def _reason(error: Exception) -> str:
    """What an error says, without the path (and its line breaks) or a full stop."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    said = error.strerror if isinstance(error, OSError) else getattr(error, "error_string", None)
    return (said or str(error)).rstrip(".")
