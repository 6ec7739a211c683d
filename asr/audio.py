"""Audio files to waveforms: the only file that decodes, mixes down or resamples.

libsndfile decodes, but it returns what is left of a truncated WAV, Ogg or MP3 without a word, and not all of some
whole ones. So `containers.py` reads the headers too, and a file is used whole or refused.
"""

import functools
import io
import logging
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import soundfile
import torch

from asr.containers import Container, read_container, truncated
from asr.errors import AudioError

AUDIO_SUFFIXES = (".aif", ".aiff", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav")

END_TOLERANCE_SECONDS = 0.02  # manifests round offset and duration, mostly to 10 ms
LEAD_IN_SECONDS = 1.0  # MP3 and Opus frames need those before them: at most 0.6 s of MP3's bit reservoir
BLOCK_SAMPLES = 1 << 18  # decoded at a time, so that memory follows what is there and not what a header declares
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 1000, 1_000_000  # a header that says otherwise is damaged
MAX_KERNEL_SIZE = 1 << 24  # numbers in a resampling kernel: 64 MiB, and a second to compute

logger = logging.getLogger("asr.audio")


class AudioInfo(NamedTuple):
    """What a file holds; `num_samples` counts each channel once."""

    sample_rate: int
    num_channels: int
    num_samples: int


def load_waveform(
    path: str | Path, sample_rate: int, *, offset: float | None = None, duration: float | None = None
) -> torch.Tensor:
    """Decode a file, or a stretch of it, mixed down to mono (the mean of its channels) and resampled.

    The stretch is seconds `offset` to `offset + duration`, each rounded to the nearest sample of the file, so
    stretches that meet share no sample and lose none. It is resampled as if silence surrounded it. Only the stretch is
    decoded, plus at most a second or an Ogg page before it; the headers are checked in any case, and for that Ogg and
    MP3 files are read, though not decoded, from beginning to end.

    Float files may go beyond [-1, 1]; nothing is scaled or clipped.

    A truncated file is refused, with these exceptions: files that declare no length, as written to a pipe (WAV, AIFF,
    W64, CAF anywhere; FLAC exactly between two frames); an MP3 exactly between two frames, if it has no Xing header,
    or exactly before its last; joined Ogg streams exactly between two; formats other than these (AU, NIST, ...).

    Args:
        path: WAV, FLAC, Ogg (Vorbis, Opus), MP3 or whatever else libsndfile reads.
        sample_rate: of the result, in Hz.
        offset: where the stretch starts, in seconds; None means 0.
        duration: its length in seconds; None means to the end of the file. It may reach END_TOLERANCE_SECONDS past
            the end of the file and is cut there.

    Shapes:
        returns: (S,) float32, with S = ceil(samples * sample_rate / the file's sample rate).

    Raises:
        AudioError: for a file that is missing, unreadable, empty, not audio or truncated, that holds NaN or infinite
            samples, or that does not hold the stretch.
    """
    name = _one_line(path)
    for key, seconds in (("offset", offset), ("duration", duration)):
        if seconds is not None and not 0 <= seconds < math.inf:
            raise AudioError(f"{name}: {key} must be a number of seconds, at least 0; got {seconds}.")
    with _opened(path) as (sound, container):
        rate, num_channels = sound.samplerate, sound.channels
        start = round((offset or 0.0) * rate)
        stop = None if duration is None else round(((offset or 0.0) + duration) * rate)
        waveform = _decode(sound, start, stop, container.last_page_samples)  # (S,) at the file's rate
        _check_length(waveform.numel(), start, stop, _num_samples(sound), rate, name)
    _check_finite(waveform, start, rate, name)
    _note_conversion(rate, num_channels, sample_rate)
    return _resample(waveform, rate, sample_rate, name)


def audio_info(path: str | Path) -> AudioInfo:
    """Say what a file holds without decoding it, as far as its headers know; they are checked as for loading.

    Raises:
        AudioError: as `load_waveform`, for faults that show without decoding.
    """
    with _opened(path) as (sound, _):
        num_samples = _num_samples(sound)
        if num_samples is None:
            num_samples = _decode(sound, 0, None, 0).numel()
        if num_samples == 0:
            raise AudioError(f"{_one_line(path)}: must hold sound; it holds 0 samples.")
        return AudioInfo(sound.samplerate, sound.channels, num_samples)


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

    found: list[Path] = []
    for folder, subfolders, files in os.walk(path, onerror=refuse):
        subfolders[:] = [subfolder for subfolder in subfolders if not subfolder.startswith(".")]
        found += [
            Path(folder, file) for file in files if file.lower().endswith(AUDIO_SUFFIXES) and not file.startswith(".")
        ]
    if not found:
        raise AudioError(f"{name}: must hold audio files ({' '.join(AUDIO_SUFFIXES)}); there are none below it.")
    return sorted(found)


# ---- decoding, mixing down, resampling


class _Sound(soundfile.SoundFile):
    """A SoundFile that only reads on: soundfile's seek after each read fails at the end of FLAC of unknown length."""

    def seekable(self) -> bool:
        return False


@contextmanager
def _opened(path: str | Path) -> Iterator[tuple[_Sound, Container]]:
    """Open a file whose headers hold; whatever libsndfile says against it, now or while decoding, is an AudioError."""
    name = _one_line(path)
    with _open_file(path, name) as file:
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
    found = "empty (0 bytes)" if stat.S_ISREG(mode) else "a folder" if stat.S_ISDIR(mode) else "not a regular file"
    raise AudioError(f"{name}: must be an audio file; it is {found}.")


def _num_samples(sound: _Sound) -> int | None:
    """Number of samples of each channel; None for a stream whose header does not say (libsndfile: 2**63 - 1)."""
    return int(sound.frames) if sound.frames < 1 << 62 else None


def _decode(sound: _Sound, start: int, stop: int | None, last_page_samples: int) -> torch.Tensor:
    """The mean over channels of samples `start` to `stop`, or to the end of the file if that comes first. (S,)"""
    end = sound.frames if stop is None else min(stop, sound.frames)
    position = _seek_point(sound, start, last_page_samples)
    blocks = [torch.zeros(0)]
    try:
        if 0 < position < end:
            sound.seek(position)
    except soundfile.LibsndfileError:  # the file ends before: the caller finds too few samples
        return blocks[0]
    skip = start - position
    while position < end:
        samples = sound.read(min(BLOCK_SAMPLES, end - position), dtype="float32", always_2d=True)
        block = torch.from_numpy(samples)  # (samples, channels)
        if not len(block):
            break
        position += len(block)
        mono = block[:, 0] if sound.channels == 1 else block.mean(dim=1)  # (samples,)
        blocks.append(mono[skip:])
        skip = max(0, skip - len(block))
    return blocks[-1] if len(blocks) == 2 else torch.cat(blocks)


def _seek_point(sound: _Sound, start: int, last_page_samples: int) -> int:
    """Where to start decoding so that sample `start` comes out as it does when the whole file is decoded."""
    if sound.subtype == "VORBIS":  # libsndfile 1.2.2 comes out elsewhere when it seeks within the last page
        return max(0, min(start, sound.frames - last_page_samples))
    if sound.subtype == "OPUS" or sound.format == "MP3":
        return max(0, start - round(LEAD_IN_SECONDS * sound.samplerate))
    return start


def _check_length(got: int, start: int, stop: int | None, known: int | None, rate: int, name: str) -> None:
    """Refuse a stretch that is not (nearly) all there; `known` is the length of the file in samples, if it is known."""
    available = start + got if known is None else known
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
    if got < wanted:
        raise truncated(name, f"{got} of {wanted} samples can be decoded")


def _check_finite(waveform: torch.Tensor, start: int, rate: int, name: str) -> None:
    if math.isfinite(waveform.sum()):  # far quicker than to look at each sample
        return
    finite = waveform.isfinite()
    if not finite.all():
        first = (start + int((~finite).nonzero()[0])) / rate
        count = int((~finite).sum())
        raise AudioError(f"{name}: samples must be finite; {count} are NaN or infinite, the first at {first:.3f} s.")


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


def _resample(waveform: torch.Tensor, source_rate: int, target_rate: int, name: str) -> torch.Tensor:
    if source_rate == target_rate:
        return waveform
    common = math.gcd(source_rate, target_rate)
    if (source_rate // common) * (target_rate // common) > MAX_KERNEL_SIZE:
        raise AudioError(
            f"{name}: its sample rate must be in a simpler ratio to {target_rate} Hz; got {source_rate} Hz. "
            f"Convert it first: ffmpeg -i FILE -ar {target_rate} NEW.wav"
        )
    return _resampler(source_rate, target_rate)(waveform)


@functools.lru_cache(maxsize=32)
def _resampler(source_rate: int, target_rate: int) -> torch.nn.Module:
    """Windowed-sinc resampling with the parameters torchaudio's documentation gives for resampy's 'kaiser_best'.

    It costs little more than torchaudio's default (4 ms for 15 s from 44.1 kHz) and lets far less alias.
    """
    from torchaudio.transforms import Resample  # here, as it adds a second to the start of every command

    return Resample(
        source_rate,
        target_rate,
        resampling_method="sinc_interp_kaiser",
        lowpass_filter_width=64,
        rolloff=0.9475937167399596,
        beta=14.769656459379492,
        dtype=torch.float64,  # in which the kernel is computed
    ).float()


def _one_line(path: str | Path) -> str:
    """A path as messages name it: as it is, or escaped and quoted if it would not print on one line."""
    text = os.fsdecode(path)
    return text if text and text.isprintable() else repr(text)


def _reason(error: Exception) -> str:
    """What an error says, without the path (and its line breaks) or a full stop."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    said = error.strerror if isinstance(error, OSError) else getattr(error, "error_string", None)
    return (said or str(error)).rstrip(".")
