"""Audio that is encoded or decoded in memory is complete, or the exception of a signal is raised; never both lost."""

import math
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

import numpy as np
import pytest
import torch

from asr.apps.shards.writer import encoded_audio
from asr.apps.web.clips import opus
from asr.base.audio.encode import anonymous_file, decode_audio, encode_audio
from asr.base.audio.load import load_waveform
from asr.components.augment.codec import CODECS, Codec
from tests.media import media_file, needs_media

RATE = 16000
INTERRUPTS = 20


class Interrupted(BaseException):
    """Stands for KeyboardInterrupt."""


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Return a function that sets the seconds after which a signal raises Interrupted; 0: never."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise Interrupted

    # Python cannot raise within a destructor; there the audio is complete, and the signal is lost.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def noise(seconds: float = 2.0) -> torch.Tensor:
    samples = np.random.default_rng(0).integers(-3000, 3000, round(seconds * RATE)) / 2**15
    return torch.from_numpy(samples.astype(np.float32))


def without_first_frame(mp3: bytes) -> bytes:
    """Remove the frame with the number of frames, so that the file must be mended before it is read."""
    return mp3[mp3.index(mp3[:2], 4) :]


def of_shard(opus: bool, waveform: torch.Tensor) -> np.ndarray:
    return decode_audio(encoded_audio(waveform, RATE, opus)[0])


def augmented(codec: str) -> np.ndarray:
    return Codec(RATE, probability=1.0, codecs=[codec], compression=[0.5, 0.5])(noise()).numpy()


MP3 = without_first_frame(encode_audio(noise().numpy(), RATE, "MP3", "MPEG_LAYER_III"))
JOBS: dict[str, Callable[[], np.ndarray]] = {
    "a shard in Opus": lambda: of_shard(True, noise()),
    "a shard in FLAC": lambda: of_shard(False, noise()),
    "a shard in WAV": lambda: of_shard(False, noise() * 1.00001),
    "a clip of a page": lambda: decode_audio(opus(noise(), RATE)),
    "an MP3 without its header": lambda: load_waveform("x.mp3", RATE, content=MP3).numpy(),
    **{f"codec {name}": (lambda name=name: augmented(name)) for name in CODECS},
}


def check_interrupted(job: Callable[[], np.ndarray], timer: Callable[[float], None]) -> None:
    expected, seconds = job(), math.inf
    for _ in range(3):  # other work on the machine may delay one of them
        begin = time.perf_counter()
        job()
        seconds = min(seconds, time.perf_counter() - begin)
    draw, num_raised = random.Random(0), 0
    for _ in range(INTERRUPTS):
        try:
            timer(max(1e-6, draw.random() * seconds))
            samples = job()
            timer(0)
            assert np.array_equal(samples, expected)
        except Interrupted:
            num_raised += 1
    assert num_raised


@pytest.mark.parametrize("name", JOBS)
def test_a_signal_during_encoding_or_decoding_is_raised(name: str, timer: Callable[[float], None]) -> None:
    check_interrupted(JOBS[name], timer)


@needs_media
@pytest.mark.parametrize("suffix", ["m4a", "webm"])
def test_a_signal_during_the_decoding_of_a_media_file_is_raised(suffix: str, timer: Callable[[float], None]) -> None:
    content = media_file(noise(8.0).numpy(), suffix=suffix, rate=RATE)
    check_interrupted(lambda: load_waveform("x", RATE, content=content).numpy(), timer)


def test_decoding_gives_the_samples_that_were_encoded() -> None:
    samples = noise(0.1).numpy()
    assert np.array_equal(decode_audio(encode_audio(samples, RATE, "WAV", "FLOAT")), samples)
    integers = (samples * 2.0**31).astype(np.int32)
    for bits in (16, 24):
        assert np.array_equal(decode_audio(encode_audio(integers, RATE, "FLAC", f"PCM_{bits}")), samples)


def test_an_anonymous_file_begins_with_its_content() -> None:
    content = bytes(range(256)) * 1000
    with anonymous_file(content) as file:
        assert file.read() == content
