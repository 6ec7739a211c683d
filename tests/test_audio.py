"""Intact audio files give the correct waveform. Damaged files give the correct waveform or a one-line error."""

import ast
import io
import itertools
import logging
import math
import os
import random
import re
import struct
import tempfile
import tracemalloc
import unicodedata
import weakref
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from asr.base.audio import flac, resampling
from asr.base.audio import load as audio
from asr.base.audio.find import find_audio
from asr.base.audio.load import audio_info, load_waveform, stream_waveform
from asr.errors import AudioError
from tests.refusals import check_refusal, mentions, refused

DATA = Path(__file__).parents[2] / "shared" / "data"
RATE = 16000

# name: (format, subtype, tolerance of samples). The tolerance is the rounding of PCM, or an estimate for lossy formats.
FORMATS = {
    "wav": ("WAV", "PCM_16", 1 / 2**15),
    "wav24": ("WAV", "PCM_24", 1 / 2**23),
    "wav_u8": ("WAV", "PCM_U8", 1 / 2**7),
    "wav_float": ("WAV", "FLOAT", 0),
    "wav_double": ("WAV", "DOUBLE", 1e-7),
    "wav_ulaw": ("WAV", "ULAW", 0.02),
    "wavex": ("WAVEX", "PCM_16", 1 / 2**15),
    "rf64": ("RF64", "PCM_16", 1 / 2**15),
    "w64": ("W64", "PCM_16", 1 / 2**15),
    "aiff": ("AIFF", "PCM_16", 1 / 2**15),
    "caf": ("CAF", "PCM_16", 1 / 2**15),
    "flac": ("FLAC", "PCM_16", 1 / 2**15),
    "flac24": ("FLAC", "PCM_24", 1 / 2**23),
    "vorbis": ("OGG", "VORBIS", 0.1),
    "opus": ("OGG", "OPUS", 0.1),
    "mp3": ("MP3", "MPEG_LAYER_III", 0.1),
}
# Formats whose truncated files must be refused.
CHECKED = ["wav", "wav_u8", "wavex", "rf64", "w64", "aiff", "caf", "flac", "vorbis", "opus", "mp3"]


def sine(seconds: float, rate: int = RATE, frequency: float = 440.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)


@cache
def noisy_sweep(seconds: float, rate: int = RATE) -> np.ndarray:
    """Return a sound that never repeats, and that lossy codecs preserve approximately."""
    t = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(0).standard_normal(t.size)
    return 0.3 * np.sin(2 * np.pi * (200 + 100 * t) * t) + 0.05 * noise


def encode(samples: np.ndarray, rate: int, format: str, subtype: str, **options: object) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=format, subtype=subtype, **options)
    return file.getvalue()


@cache
def encoded(name: str, seconds: float = 4.1) -> bytes:
    return encode(noisy_sweep(seconds), RATE, *FORMATS[name][:2])


def mp3(mode: str = "CONSTANT", seconds: float = 4.1, rate: int = RATE, level: float = 0.5) -> bytes:
    return encode(noisy_sweep(seconds, rate), rate, "MP3", "MPEG_LAYER_III", bitrate_mode=mode, compression_level=level)


def without_header(data: bytes) -> bytes:
    """Remove the first frame of an MP3, which contains the Xing header and no sound."""
    second = data.index(data[:2], 4)
    assert re.search(b"Xing|Info", data[:second])
    return data[second:]


def chunk(identifier: bytes, body: bytes, *, pad: bool = True) -> bytes:
    return identifier + struct.pack("<I", len(body)) + body + b"\0" * (pad and len(body) % 2)


def wav_of(*chunks: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 4 + sum(map(len, chunks))) + b"WAVE" + b"".join(chunks)


def fmt(rate: int = RATE, channels: int = 1, bits: int = 16) -> bytes:
    frame = channels * bits // 8
    return chunk(b"fmt ", struct.pack("<HHIIHH", 1, channels, rate, rate * frame, frame, bits))


PCM = (np.arange(-500, 501) * 30).astype("<i2")  # 1001 samples


@pytest.fixture
def save(tmp_path):
    def write(data: bytes, name: str = "x.bin") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def refusal(path: Path | str, **segment: float) -> str:
    """Return the error message of a refused file, which must be one line with the file's name."""
    with pytest.raises(AudioError) as caught:
        load_waveform(path, RATE, **segment)
    message = str(caught.value)
    assert message.startswith((str(path), repr(str(path))))
    assert "\n" not in message
    assert message.isprintable()
    return message


# ---- complete files


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_returns_the_samples_that_were_written(name, save):
    written = noisy_sweep(2.0)
    format, subtype, tolerance = FORMATS[name]
    path = save(encode(written, RATE, format, subtype))
    waveform = load_waveform(path, RATE)
    assert waveform.dtype == torch.float32
    assert waveform.shape == written.shape
    error = np.abs(waveform.numpy() - written.astype(np.float32))
    assert error.max() <= (3 * tolerance if name in ("vorbis", "opus", "mp3") else tolerance)
    assert error.mean() <= tolerance
    assert audio_info(path) == (RATE, 1, written.size)


@pytest.mark.parametrize("name", ["wav", "flac", "vorbis", "mp3", "opus"])
@pytest.mark.parametrize("rate", [8000, 24000, 48000])
def test_a_sine_keeps_its_frequency_and_loudness_in_any_format_and_at_any_rate(name, rate, save):
    path = save(encode(sine(1.0, rate), rate, *FORMATS[name][:2]))
    waveform = load_waveform(path, RATE).numpy()
    assert len(waveform) == RATE
    spectrum = np.abs(np.fft.rfft(waveform[2000:14000] * np.hanning(12000)))  # bins of 4/3 Hz
    assert abs(spectrum.argmax() * 4 / 3 - 440) <= 2 / 3
    assert np.sqrt((waveform[2000:14000] ** 2).mean()) == pytest.approx(0.5 / math.sqrt(2), rel=0.02)


def test_channels_are_mixed_down_to_their_mean(save):
    left, right = noisy_sweep(0.5), sine(0.5)
    path = save(encode(np.stack([left, right], axis=1), RATE, "WAV", "FLOAT"))
    expected = (left.astype(np.float32) + right.astype(np.float32)) / 2
    np.testing.assert_allclose(load_waveform(path, RATE), expected, atol=1e-7)  # one rounding of float32
    path = save(encode(np.stack([left, left, right], axis=1), RATE, "WAV", "FLOAT"))
    np.testing.assert_allclose(load_waveform(path, RATE), (2 * left + right) / 3, atol=1e-7)


@pytest.mark.parametrize("name", ["flac", "vorbis", "mp3"])  # decoding of Vorbis and MP3 begins before the segment
def test_the_blocks_of_a_long_file_are_joined_without_a_discontinuity(name, save, monkeypatch):
    path = save(encoded(name))
    whole, segment = load_waveform(path, RATE), load_waveform(path, RATE, offset=3.9, duration=0.15)
    monkeypatch.setattr(audio, "BLOCK_SAMPLES", 777)
    assert torch.equal(load_waveform(path, RATE), whole)
    assert torch.equal(load_waveform(path, RATE, offset=3.9, duration=0.15), segment)


def test_float_samples_above_1_are_not_changed(save):
    samples = np.array([0.0, 1.5, -3.0, 0.25], dtype=np.float32)
    assert load_waveform(save(encode(samples, RATE, "WAV", "FLOAT")), RATE).tolist() == samples.tolist()
    for largest in (2.0**15, 2.0**23, 2.0**24):  # as if integer samples had not been scaled to [-1, 1]
        large = np.linspace(-largest, largest, 1000, dtype=np.float32)
        assert load_waveform(save(encode(large, RATE, "WAV", "FLOAT")), RATE).tolist() == large.tolist()


# ---- resampling


USUAL = [(8000, 16000), (11025, 16000), (22050, 16000), (44100, 16000), (48000, 16000), (11025, 8000)]
ODD = [(1301, 16000), (15999, 16000), (44101, 16000), (96001, 16000), (16001, 44100), (999_983, 8000), (1000, 999)]


def resampled(blocks: Iterable[torch.Tensor], source: int, target: int) -> torch.Tensor:
    """Resample a waveform; an empty waveform stays empty."""
    return torch.cat([torch.zeros(0), *resampling.resampled(blocks, source, target)])


@pytest.mark.parametrize(("source", "target"), USUAL + ODD)
@pytest.mark.parametrize("length", [1, 999, 20_000])
def test_resampling_gives_an_independently_resampled_waveform(source, target, length, save):
    """The samples are of a sound below the pass band's end, which any good filter leaves unchanged."""
    cutoff = 0.2 * min(source, target)  # Hz
    rng = np.random.default_rng(0)
    tones = [(rng.uniform(0.1, 1), cutoff * rng.uniform(0.1, 1), rng.uniform(0, 2 * np.pi)) for _ in range(5)]

    def sound(rate: int, num_samples: int) -> np.ndarray:
        seconds = np.arange(num_samples) / rate
        return sum(level / 5 * np.sin(2 * np.pi * hertz * seconds + phase) for level, hertz, phase in tones)

    waveform = load_waveform(save(encode(sound(source, length), source, "WAV", "DOUBLE")), target)
    assert len(waveform) == math.ceil(length * target / source)
    expected = sound(target, len(waveform))
    edge = math.ceil(0.01 * 16000 * target / min(source, target))  # the sound begins and ends abruptly
    np.testing.assert_allclose(waveform[edge:-edge], expected[edge:-edge], atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    source=st.integers(1000, 1_000_000) | st.integers(1000, 20_000),
    target=st.sampled_from([8000, 16000, 22050, 44100]),
    length=st.integers(0, 30_000),
)
def test_the_number_of_resampled_samples_is_rounded_up(source, target, length):
    waveform = resampled([torch.ones(length)], source, target)
    assert len(waveform) == math.ceil(length * target / source)


@pytest.mark.parametrize(
    ("source", "target"), [(44100, 16000), (44101, 16000), (48000, 16000), (96000, 16000), (16000, 8000)]
)
def test_the_pass_band_is_flat_and_nothing_is_aliased(source, target):
    def decibels(frequency: float) -> float:
        """Return the level in dB of a resampled tone of 0 dB; `frequency` is a fraction of the target rate."""
        tone = torch.from_numpy(2 * sine(0.4, source, frequency * target)).float()
        waveform = resampled([tone], source, target)
        middle = waveform[target // 10 : -target // 10].double()  # contains an integer number of periods of the tone
        return 10 * math.log10(2 * float(middle.square().mean()) + 1e-20)

    assert [decibels(frequency) for frequency in (0.01, 0.2, 0.4, 0.45)] == pytest.approx([0.0] * 4, abs=0.01)
    assert -0.5 < decibels(7500 / 16000) < -0.3
    assert max(map(decibels, (8100 / 16000, 0.55, 0.7, 0.99))) < -120


def test_frequencies_that_the_lower_rate_cannot_represent_are_removed(save):
    tone = sine(0.5, 48000, frequency=9000)  # without a filter, aliasing would move this tone to 7 kHz
    waveform = load_waveform(save(encode(tone, 48000, "WAV", "FLOAT")), 16000)
    assert waveform[1000:-1000].abs().max() < 1e-4  # 74 dB below the tone


def test_an_impossible_sample_rate_is_refused(save):
    for rate in (1, 2_000_000):
        message = refusal(save(wav_of(fmt(rate=rate), chunk(b"data", bytes(100)))))
        assert mentions(message, f"sample rate; got {rate}")


# ---- segments of files


@pytest.mark.parametrize(
    "name", ["wav", "wav_float", "flac", "aiff", "vorbis", "opus", "mp3", "mp3_vbr", "flac_unknown"]
)
def test_a_segment_equals_the_same_slice_of_the_whole_waveform(name, save):
    seconds = 12.3
    if name == "mp3_vbr":
        data = mp3("VARIABLE", seconds, level=0.95)
    elif name == "flac_unknown":
        data = with_flac_length(encoded("flac", seconds), 0)
    else:
        data = encoded(name, seconds)
    path = save(data)
    whole = load_waveform(path, RATE)
    # The state of Opus depends on audio before the lead-in of a segment. MP3's synthesis rounds differently if decoding
    # begins at a later frame.
    tolerance = 2e-3 if name == "opus" else 1e-6 if name.startswith("mp3") else 0
    pick = random.Random(0)
    starts = [0.0, 0.5, *(pick.uniform(0, seconds) for _ in range(8)), *(seconds - rest / 8 for rest in range(1, 10))]
    for start in starts:
        duration = pick.uniform(0.001, seconds - start)
        first, last = round(start * RATE), round((start + duration) * RATE)
        segment = load_waveform(path, RATE, offset=start, duration=duration)
        assert segment.shape == (last - first,)
        assert (segment - whole[first:last]).abs().max() <= tolerance, (start, duration)
    assert torch.equal(load_waveform(path, RATE, duration=1.5), whole[:24000])
    assert torch.allclose(load_waveform(path, RATE, offset=1.5), whole[24000:], atol=tolerance, rtol=0)


def test_joining_consecutive_segments_gives_the_whole_waveform(save):
    path = save(encoded("flac"))
    parts = [load_waveform(path, RATE, offset=n / 30, duration=1 / 30) for n in range(4 * 30)]
    assert torch.equal(torch.cat(parts), load_waveform(path, RATE, duration=4))


def test_a_resampled_segment_is_close_to_the_slice_of_the_whole_waveform(save):
    path = save(encode(noisy_sweep(3.0, 44100), 44100, "FLAC", "PCM_24"))
    whole = load_waveform(path, RATE)
    segment = load_waveform(path, RATE, offset=1.0, duration=1.0)
    assert segment.shape == (RATE,)
    edge = 70  # samples at each end that depend on audio outside the segment
    torch.testing.assert_close(segment[edge:-edge], whole[RATE + edge : 2 * RATE - edge], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["wav", "flac", "vorbis", "opus", "mp3"])
def test_a_segment_may_exceed_the_end_of_the_file_only_by_rounding(name, save):
    path = save(encoded(name))  # 4.1 s
    rest = load_waveform(path, RATE, offset=4.0)
    assert rest.shape == (1600,)
    assert torch.allclose(load_waveform(path, RATE, offset=4.0, duration=0.11), rest, atol=1e-6)
    for offset, duration in [(4.0, 0.15), (4.1, 0.01), (5.0, 1.0), (1e300, 1.0)]:
        message = refusal(path, offset=offset, duration=duration)
        assert mentions(message, f"segment ... {offset:.3f} s ... 4.100 s")
    assert mentions(refusal(path, offset=4.2), "segment ... 4.200 s ... 4.100 s")


@pytest.mark.parametrize(
    "segment", [{"offset": -0.1}, {"duration": -1.0}, {"offset": math.nan}, {"duration": math.inf}]
)
def test_invalid_offsets_and_durations_are_refused(segment, save):
    [(key, value)] = segment.items()
    check_refusal(refusal(save(encoded("wav")), **segment), key, got=value)


def test_a_segment_shorter_than_one_sample_is_refused(save):
    assert "shorter than one sample" in refusal(save(encoded("wav")), offset=1.0, duration=1e-6)


def test_only_the_requested_segment_of_a_long_file_is_decoded(save, monkeypatch):
    decoded = 0
    read = audio._Sound.read

    def counting(self, frames, **options):
        nonlocal decoded
        block = read(self, frames, **options)
        decoded += len(block)
        return block

    monkeypatch.setattr(audio._Sound, "read", counting)
    for name in ["wav", "flac", "vorbis", "opus", "mp3"]:
        decoded = 0
        load_waveform(save(encoded(name, 12.3)), RATE, offset=8.0, duration=0.5)
        assert decoded <= 1.5 * RATE


# ---- logged notes


def test_mixing_down_and_resampling_are_logged_once_for_each_kind_of_file(save, caplog):
    audio._note_conversion.cache_clear()
    stereo = save(encode(np.zeros((4410, 2)), 44100, "WAV", "PCM_16"), "stereo.wav")
    telephone = save(encode(np.zeros(800), 8000, "WAV", "PCM_16"), "telephone.wav")
    plain = save(encode(np.zeros(1600), RATE, "WAV", "PCM_16"), "plain.wav")
    with caplog.at_level(logging.WARNING, "asr.base.audio.load"):
        for path in [stereo, telephone, plain] * 3:
            load_waveform(path, RATE)
    assert caplog.messages == [
        "audio of 44100 Hz with 2 channels is mixed down to mono and resampled to 16000 Hz.",
        "audio of 8000 Hz with 1 channel is resampled to 16000 Hz.",
    ]


def test_channels_that_cancel_each_other_are_reported(save, caplog):
    """If one channel is the inverse of the other, mixing down removes the speech; a warning must report this."""
    sound = np.sin(np.arange(48_000) / 9)
    noise = np.random.default_rng(0).normal(size=(48_000, 6)) / 10
    kinds = {
        "same": np.stack([sound, sound], axis=1),
        "independent": noise,
        "one silent": np.stack([sound, 0 * sound], axis=1),
        "silent": np.zeros((48_000, 2)),
        "inverted": np.stack([sound, -sound], axis=1),
        "nearly inverted": np.stack([sound, -0.9 * sound], axis=1) + noise[:, :2] / 100,
    }
    paths = {name: save(encode(samples / 2, RATE, "WAV", "FLOAT"), f"{name}.wav") for name, samples in kinds.items()}
    with caplog.at_level(logging.WARNING, "asr.base.audio.load"):
        for path in [*paths.values()] * 2:
            load_waveform(path, RATE)
    named = [message for message in caplog.messages if " dB " in message]
    assert [message.partition(": ")[0] for message in named] == [str(paths["inverted"]), str(paths["nearly inverted"])]
    assert re.search(r"\d+ dB .* one channel\.", named[1])


def test_importing_asr_audio_does_not_import_torchaudio():
    nodes = ast.parse(Path(audio.__file__).read_text()).body
    imports = [ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    assert "import torch" in imports
    assert not any("torchaudio" in line for line in imports)


# ---- streams


def streamed(path: Path, sample_rate: int = RATE, **options: float) -> torch.Tensor:
    blocks = list(stream_waveform(path, sample_rate, **options))
    assert all(block.dtype == torch.float32 and block.dim() == 1 and block.numel() > 0 for block in blocks)
    return torch.cat(blocks)


SEGMENTS = [{}, {"offset": 0.5}, {"duration": 1.3}, {"offset": 1.37, "duration": 0.6}, {"offset": 2.09}]


@pytest.mark.parametrize("name", FORMATS)
def test_joining_the_blocks_of_a_stream_gives_the_waveform_in_any_format(name, save):
    path = save(encoded(name, 2.1))
    for segment in SEGMENTS:
        whole = load_waveform(path, RATE, **segment)
        for block_seconds in (0.0501, 0.7, 5.0):
            assert torch.equal(streamed(path, block_seconds=block_seconds, **segment), whole)


@pytest.mark.parametrize(("name", "rate"), [("wav", 8000), ("flac", 22050), ("flac", 44100), ("mp3", 44100)])
@pytest.mark.parametrize("num_channels", [1, 2, 5])
def test_joining_the_blocks_of_a_mixed_down_and_resampled_stream_gives_the_waveform(name, rate, num_channels, save):
    if name == "mp3":
        num_channels = min(num_channels, 2)
    sound = np.stack([np.roll(noisy_sweep(2.5, rate), 100 * n) for n in range(num_channels)], axis=1)
    path = save(encode(sound, rate, *FORMATS[name][:2]))
    for segment in SEGMENTS:
        whole = load_waveform(path, RATE, **segment)
        for block_seconds in (0.0031, 0.5, 2.0):  # 0.0031 s is shorter than the resampling kernel at 44.1 kHz
            assert torch.equal(streamed(path, block_seconds=block_seconds, **segment), whole)


@pytest.mark.parametrize("rates", USUAL + ODD)
def test_resampling_in_blocks_of_any_length_gives_the_same_bits(rates):
    source, target = rates
    rng = np.random.default_rng(source)
    for _ in range(80):  # about 1,000 divisions over all rates
        length = int(rng.choice([1, 20, 1000, 30_000]))
        waveform = torch.from_numpy(rng.uniform(-1, 1, length).astype(np.float32))
        cuts = np.sort(rng.integers(0, length + 1, rng.integers(0, 20)))
        pieces = resampled(waveform.tensor_split(cuts.tolist()), source, target)
        assert len(pieces) == math.ceil(length * target / source)
        assert torch.equal(pieces, resampling.resample(waveform, source, target)), cuts


@pytest.mark.parametrize(
    ("source", "held_back"), [(16000, 0.0), (48000, 0.037), (44100, 0.041), (96000, 0.08), (8000, 0.116), (12347, 0.08)]
)
def test_a_live_waveform_is_resampled_as_soon_as_possible(source, held_back):
    """`held_back` is the maximum duration, in seconds, of the audio that waits for the audio after it."""
    waveform = torch.from_numpy(np.random.default_rng(source).uniform(-1, 1, 3 * source // 2).astype(np.float32))
    resampler, pieces, fed = resampling.Resampler(source, RATE), [], 0
    for block in waveform.split([1, 0, *[source // 1000] * 1400, len(waveform) - 1 - 1400 * (source // 1000)]):
        pieces.append(resampler.feed(block))
        fed += len(block)
        behind = fed / source - sum(map(len, pieces)) / RATE
        assert -1 / RATE < behind <= held_back
    pieces.append(resampler.finish())
    assert torch.equal(torch.cat(pieces), resampled([waveform], source, RATE))


def test_resampled_long_files_have_the_exact_number_of_samples():
    """Float32 cannot represent all numbers of samples above 2**24."""
    blocks = (torch.zeros(11025 * 60) for _ in range(20))
    assert sum(map(len, resampling.resampled([*blocks, torch.zeros(1)], 11025, 16000))) == 20 * 60 * 16000 + 2


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_file_of_one_or_a_few_samples_can_be_streamed(rate, length, save):
    path = save(encode(np.full(length, 0.5), rate, "WAV", "FLOAT"))
    assert torch.equal(streamed(path, block_seconds=1e-9), load_waveform(path, RATE))
    assert len(streamed(path)) == math.ceil(length * RATE / rate)


def end_of_stream(path: Path, **options: float) -> tuple[list[torch.Tensor], str]:
    """Return the blocks that a stream yields before its error, and the error message."""
    blocks: list[torch.Tensor] = []
    with pytest.raises(AudioError) as caught:
        blocks.extend(stream_waveform(path, RATE, **options))  # `extend` keeps the blocks before the error
    return blocks, str(caught.value)


@pytest.mark.parametrize("name", CHECKED)
def test_streaming_and_loading_a_truncated_file_end_with_the_same_error(name, save):
    path = save(encoded(name)[: -len(encoded(name)) // 3])
    blocks, message = end_of_stream(path, block_seconds=0.1)
    assert message == refusal(path)
    assert "truncated" in message
    whole = load_waveform(save(encoded(name), "whole"), RATE)
    # Only FLAC yields blocks before the error; in other formats the header already reveals the fault.
    assert (len(blocks) > 5) == (name == "flac")
    if blocks:
        assert torch.equal(torch.cat(blocks), whole[: sum(map(len, blocks))])


def test_a_stream_ends_before_the_first_block_with_non_finite_samples_and_the_error_counts_all_of_them(save):
    samples = noisy_sweep(1.0).astype(np.float32)
    samples[[8000, 9000, 15999]] = math.nan
    path = save(encode(samples, RATE, "WAV", "FLOAT"))
    blocks, message = end_of_stream(path, block_seconds=0.1)
    assert torch.equal(torch.cat(blocks), torch.from_numpy(samples[:8000]))
    assert message == refusal(path)
    assert mentions(message, "3 ... first nan at 0.500 s")
    assert mentions(end_of_stream(path, offset=0.55, block_seconds=0.1)[1], "2 ... first nan at 0.562 s")


@pytest.mark.parametrize("unknown", [False, True])
def test_a_stream_of_a_segment_beyond_the_end_of_the_file_is_refused(unknown, save):
    path = save(with_flac_length(encoded("flac"), 0) if unknown else encoded("flac"))  # 4.1 s
    for segment in ({"offset": 4.0, "duration": 1.0}, {"offset": 9.0}, {"duration": 1e-6}, {"offset": -1.0}):
        blocks, message = end_of_stream(path, block_seconds=0.02, **segment)
        assert message == refusal(path, **segment)
        assert len(blocks) == (5 if unknown and "offset" in segment and segment["offset"] == 4.0 else 0)


def test_a_stream_that_is_stopped_early_closes_its_file(save, monkeypatch):
    opened = []
    open_file = audio._open_file
    monkeypatch.setattr(audio, "_open_file", lambda *args: opened.append(open_file(*args)) or opened[-1])
    stream = stream_waveform(save(encoded("flac")), RATE, block_seconds=0.1)
    next(stream)
    assert not opened[0].closed
    stream.close()
    assert opened[0].closed


@pytest.mark.parametrize(("rate", "num_channels"), [(16000, 1), (44100, 2)])
def test_a_long_file_is_streamed_with_little_memory(rate, num_channels, tmp_path, monkeypatch):
    minute = np.stack([noisy_sweep(60.0, rate)] * num_channels, axis=1)
    with soundfile.SoundFile(tmp_path / "long.wav", "w", rate, num_channels, "PCM_16") as file:
        for _ in range(20 if rate == RATE else 4):
            file.write(minute)
        num_samples = file.frames
    live_bytes = most = 0
    read = audio._Sound.read

    def release(size: int) -> None:
        nonlocal live_bytes
        live_bytes -= size

    def counting(self, *args, **options):
        nonlocal live_bytes, most
        samples = read(self, *args, **options)
        live_bytes += samples.nbytes
        most = max(most, live_bytes)
        weakref.finalize(samples, release, samples.nbytes)
        return samples

    monkeypatch.setattr(audio._Sound, "read", counting)
    got = sum(len(block) for block in stream_waveform(tmp_path / "long.wav", RATE, block_seconds=1.0))
    assert got == math.ceil(num_samples * RATE / rate)
    assert most <= 4 * rate * num_channels * 4  # 4 seconds of float32


# ---- files that are not audio


def test_a_missing_file_a_folder_and_a_pipe_are_named_in_the_error(tmp_path):
    assert "there is no such file" in refusal(tmp_path / "gone.wav")
    assert "it is a folder" in refusal(tmp_path)
    assert "null" in refusal("a\0b.wav")
    os.mkfifo(tmp_path / "pipe.wav")
    assert "not a regular file" in refusal(tmp_path / "pipe.wav")


@pytest.mark.parametrize(("form", "other"), [("NFC", "NFD"), ("NFD", "NFC")])
@pytest.mark.parametrize("folder", ["", "Gespräche"])
def test_a_file_whose_name_has_another_unicode_form_is_named_in_the_error(form, other, folder, tmp_path, monkeypatch):
    name = f"{folder}/Café, 1 Å.wav".removeprefix("/")
    path = tmp_path / unicodedata.normalize(form, name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encoded("wav"))
    monkeypatch.chdir(tmp_path)
    for base in (tmp_path, Path()):
        wanted = base / unicodedata.normalize(other, name)
        if wanted.exists():
            pytest.skip("the file system does not distinguish Unicode normal forms")
        message = refusal(wanted)
        assert f"Unicode form is {form}" in message
        assert ascii(str(base / unicodedata.normalize(form, name))) in message
        with refused(AudioError, f"Unicode ... {form}"):
            find_audio(wanted)
    assert "Unicode" not in refusal(tmp_path / "Caf.wav")
    assert "Unicode" not in refusal(tmp_path / "été" / "Caf.wav")


def test_a_file_without_read_permission_is_named_in_the_error():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder, "secret.wav")
        path.write_bytes(encoded("wav"))
        path.chmod(0)
        user = os.geteuid()
        try:
            if user == 0:  # root may read everything
                os.seteuid(65534)
            assert "Permission denied" in refusal(path)
        finally:
            os.seteuid(user)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty (0 bytes)"),
        (b"hello, this is a text file\n" * 100, "Format not recognised"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Format not recognised"),
        (bytes(5000), "Format not recognised"),
        (b"RIFF", "libsndfile"),
        (b"\xff", "libsndfile"),
        (b"ID3\x04\0\0\0\0\0\x05hello", "libsndfile"),
        (b"OggS", "truncated"),
    ],
)
def test_files_that_are_not_audio_are_refused(data, reason, save):
    assert reason in refusal(save(data))


@pytest.mark.parametrize("name", ["wav", "flac", "aiff", "vorbis", "w64"])
def test_a_file_without_samples_is_refused(name, save):
    path = save(encode(np.zeros(0), RATE, *FORMATS[name][:2]))
    # Without samples, libsndfile writes an empty file for FLAC, and only the headers for Ogg.
    assert re.search("0 samples|0 bytes|truncated", refusal(path))
    with pytest.raises(AudioError):
        audio_info(path)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30, -1e30, -1.001 * 2**24])
@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_non_finite_or_extremely_large_samples_are_refused(bad, subtype, save):
    samples = noisy_sweep(1.0).copy()
    samples[[8000, 9000]] = bad
    path = save(encode(samples, RATE, "WAV", subtype))
    assert mentions(refusal(path), f"samples ... 16777216 ... 2 ... first {bad:g} at 0.500 s")
    assert f"first {bad:g} at 0.500 s" in refusal(path, offset=0.4, duration=0.2)
    assert load_waveform(path, RATE, duration=0.4).shape == (6400,)
    stereo = np.stack([samples, np.full_like(samples, math.nan)], axis=1)
    assert mentions(refusal(save(encode(stereo, RATE, "WAV", subtype))), "16000 ... first nan")


def test_unusual_file_names_are_shown_on_one_line(tmp_path):
    for name in ["two\nlines.wav", "bell\a.wav", "right\u202eleft.wav", os.fsdecode(b"latin-\xe9.wav")]:
        path = tmp_path / name
        assert repr(str(path)) in refusal(path)
        path.write_bytes(encoded("wav"))
        assert load_waveform(path, RATE).shape == (65600,)
    path = tmp_path / "größe 大小.wav"
    assert f"{path}: " in refusal(path)


# ---- truncated files


@pytest.mark.parametrize("name", CHECKED)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_truncated_at_any_byte_is_refused(name, save, data):
    whole = encoded(name)
    cut = data.draw(st.one_of(st.integers(1, len(whole) - 1), st.integers(len(whole) - 50, len(whole) - 1)), "cut")
    if name == "mp3":
        assume(cut != whole.rindex(whole[:3]))  # another test covers an MP3 that is cut exactly before its last frame
    refusal(save(whole[:cut]))


@pytest.mark.parametrize("name", CHECKED)
def test_a_file_without_its_last_byte_or_second_half_is_reported_as_truncated(name, save):
    whole = encoded(name)
    for cut in (len(whole) - 1, len(whole) // 2):
        path = save(whole[:cut])
        assert "truncated" in refusal(path)
        if name != "flac":  # the header of FLAC does not reveal the fault
            with refused(AudioError, "truncated"):
                audio_info(path)


@pytest.mark.parametrize("name", ["vorbis", "opus"])
def test_an_ogg_file_cut_between_two_pages_is_refused(name, save):
    whole = encoded(name)
    for page in re.finditer(b"OggS", whole):
        if page.start() > 0:
            refusal(save(whole[: page.start()]))


def test_a_flac_file_cut_between_two_frames_is_refused(save):
    whole = encoded("flac")
    frames = [match.start() for match in re.finditer(b"\xff\xf8[\x00-\xff]{2}", whole)]
    assert len(frames) > 10
    for position in frames:
        assert "truncated" in refusal(save(whole[:position]))
    message = refusal(save(whole[: frames[-2]]), offset=4.0, duration=0.05)  # this segment is after the cut
    assert "truncated" in message


def frame_starts(data: bytes) -> list[int]:
    """Return the starts of an MP3's frames; all frames must have the same length (constant bit rate, no padding)."""
    length = data.index(data[:3], 3)
    assert len(data) % length == 0
    return list(range(0, len(data), length))


def test_an_mp3_cut_between_two_frames_is_refused_if_it_has_a_header(save):
    whole = mp3()
    *starts, last = frame_starts(whole)[1:]
    for start in starts:
        assert "frames are present" in refusal(save(whole[:start]))
    # the documented exception: a file that lacks exactly its last frame is not refused
    assert len(load_waveform(save(whole[:last]), RATE)) > 4.1 * RATE - 1152


def test_an_mp3_without_a_header_is_refused_only_if_cut_within_a_frame(save):
    bare = without_header(mp3())
    starts = frame_starts(bare)
    for start in starts[3:8]:
        for extra in (1, 2, 3, 4, 100):
            assert "is cut off" in refusal(save(bare[: start + extra]))
        # the documented exception: a cut between two frames is not detected
        assert len(load_waveform(save(bare[:start]), RATE)) == starts.index(start) * 576 - 529


def test_a_header_that_declares_an_excessive_size_costs_no_memory(save):
    flac = encoded("flac")
    cases = [
        wav_of(fmt(), chunk(b"data", bytes(1000))).replace(struct.pack("<I", 1000), struct.pack("<I", 4_000_000_000)),
        with_flac_length(flac, (1 << 36) - 1),
        wav_of(fmt(channels=1024), struct.pack("<4sI", b"data", 0xFFFFFFFE)) + bytes(100),
    ]
    for data in cases:
        path = save(data)
        tracemalloc.start()
        try:
            refusal(path)
            assert tracemalloc.get_traced_memory()[1] < 20e6
        finally:
            tracemalloc.stop()


# ---- headers that libsndfile misreads


def with_flac_length(data: bytes, num_samples: int) -> bytes:
    """Return a FLAC file whose header declares another length; 0 means unknown, as in a FLAC written to a pipe."""
    fields = int.from_bytes(data[18:26], "big") >> 36 << 36
    return data[:18] + (fields | num_samples).to_bytes(8, "big") + data[26:]


@pytest.mark.parametrize("length", [0, 0x7FFFF000, 0x7FFFEFFC, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFF - 36])
@pytest.mark.parametrize("outer", [0, 8, 36, 0x7FFFF024, 0xFFFFFFFF])
def test_a_wav_written_to_a_pipe_is_read_to_the_end(length, outer, save):
    data = b"RIFF" + struct.pack("<I", outer) + b"WAVE" + fmt() + b"data" + struct.pack("<I", length) + PCM.tobytes()
    path = save(data)
    assert torch.equal(load_waveform(path, RATE), torch.from_numpy(PCM / 2**15).float())
    assert audio_info(path) == (RATE, 1, PCM.size)
    assert torch.equal(load_waveform(path, RATE, offset=0.01, duration=0.02), load_waveform(path, RATE)[160:480])


def test_an_rf64_file_written_to_a_pipe_is_read_to_the_end(save):
    data = encoded("rf64")
    position = data.index(b"ds64") + 8
    piped = data[:position] + bytes(24) + data[position + 24 :]
    assert torch.equal(load_waveform(save(piped), RATE), load_waveform(save(data), RATE))


def test_a_flac_of_unknown_length_is_read_to_the_end(save):
    data = encoded("flac")
    path = save(with_flac_length(data, 0))
    assert torch.equal(load_waveform(path, RATE), load_waveform(save(data, "known.flac"), RATE))
    assert audio_info(path) == (RATE, 1, 65600)
    assert mentions(refusal(path, offset=4.0, duration=1.0), "segment ... 5.000 s ... less audio")
    assert mentions(refusal(path, offset=50.0, duration=1.0), "segment ... 51.000 s ... less audio")
    assert "truncated" in refusal(save(with_flac_length(data, 0)[:-100]))


def test_an_empty_wav_is_not_mistaken_for_a_wav_from_a_pipe(save):
    note = chunk(b"LIST", b"INFOISFT" + struct.pack("<I", 4) + b"abc\0")
    for data in [wav_of(fmt(), chunk(b"data", b"")), wav_of(fmt(), chunk(b"data", b""), note)]:
        assert "0 samples" in refusal(save(data))


@pytest.mark.parametrize("padded", [True, False])
def test_other_chunks_before_and_after_the_audio_are_ignored(padded, save):
    note = chunk(b"LIST", b"INFOIART" + struct.pack("<I", 3) + b"abc")  # a chunk of odd length
    odd = (np.arange(1001) % 256).astype(np.uint8)
    data = wav_of(note, fmt(bits=8), note, chunk(b"data", odd.tobytes(), pad=padded), *[note] * padded)
    path = save(data)
    np.testing.assert_array_equal(load_waveform(path, RATE), (odd / 128 - 1).astype(np.float32))
    end = data.index(odd.tobytes()) + odd.size
    assert "1000 of 1001 bytes" in refusal(save(data[: end - 1]))
    assert load_waveform(save(data[:end]), RATE).shape == (1001,)


@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE"])
@pytest.mark.parametrize("skipped", [0, 1, 2])
def test_an_mp3_without_a_header_is_read_completely(mode, skipped, save):
    whole = mp3(mode, 8.0, rate=44100)
    bare = without_header(whole)
    # Drop leading frames. The number of samples must be correct whether or not the first remaining frame has a padding
    # byte, and whether it is quiet or loud.
    for _ in range(skipped):
        bare = bare[bare.index(bare[:2], 4) :]
    complete, rest = load_waveform(save(whole), 44100), load_waveform(save(bare), 44100)
    delay = 576 - 1152 * skipped  # the length of LAME's padding, which is stored only in the header
    assert len(rest) >= len(complete) + delay
    later = rest[10000 + delay :][: len(complete) - 10000]  # the first frames may need bits of the dropped frames
    torch.testing.assert_close(later, complete[10000:], atol=1e-6, rtol=0)


@pytest.mark.parametrize("header", [b"VBRI", b"Info"])
def test_an_mp3_header_without_the_number_of_frames_is_ignored(header, save):
    data = mp3()
    bare = without_header(data)
    first = data[: len(data) - len(bare)]
    position = 36 if header == b"VBRI" else first.index(b"Info")
    silent = first[:4].ljust(position, b"\0") + header
    path = save(silent.ljust(len(first), b"\0") + bare)
    assert torch.equal(load_waveform(path, RATE), load_waveform(save(bare, "bare.mp3"), RATE))


def test_joined_mp3_files_are_read_completely(save):
    data = mp3()
    tag = b"ID3\x04\0\0\0\0\x01\x00" + bytes(128)
    once = len(load_waveform(save(data), RATE))
    for joined in (data + data, tag + data + tag + data):
        assert len(load_waveform(save(joined), RATE)) >= 2 * once


def test_tags_before_and_after_an_mp3_are_ignored(save):
    data = mp3()
    waveform = load_waveform(save(data), RATE)
    before = b"ID3\x04\0\0\0\0\x01\x00" + b"\xff\xfb\x90\x00" * 32
    after = b"TAG" + b"title".ljust(125, b"\0")
    for tagged in (before + data, data + after, before + before + data + after, data + bytes(1000)):
        assert torch.equal(load_waveform(save(tagged), RATE), waveform)
    bare = without_header(data)
    assert torch.equal(load_waveform(save(bare + after), RATE), load_waveform(save(bare), RATE))


# ---- more audio than declared


def with_length(data: bytes, name: str, part: float) -> bytes:
    """Return a file whose header declares this part of its length, as an interrupted or appending program leaves it."""
    if name == "flac":
        return with_flac_length(data, round(part * 65600))
    identifier, form = {
        "wav": (b"data", "<I"),
        "rifx": (b"data", ">I"),
        "rf64": (b"ds64\x1c\0\0\0        "[:16], "<Q"),
        "aiff": (b"SSND", ">I"),
        "caf": (b"data", ">Q"),
        "au": (b".snd\0\0\0\x18", ">I"),
    }[name]
    position = data.index(identifier[:4]) + len(identifier)
    [length] = struct.unpack_from(form, data, position)
    return data[:position] + struct.pack(form, round(part * length / 4) * 4) + data[position + struct.calcsize(form) :]


def content_of(name: str) -> bytes:
    if name == "rifx":
        return encode(noisy_sweep(4.1), RATE, "WAV", "PCM_16", endian="BIG")
    return encode(noisy_sweep(4.1), RATE, "AU", "PCM_16") if name == "au" else encoded(name)


DECLARED = ["wav", "rifx", "rf64", "aiff", "caf", "au", "flac"]


@pytest.mark.parametrize("name", DECLARED)
@pytest.mark.parametrize("part", [0.01, 0.5, 0.99])
def test_a_file_with_more_audio_than_its_header_declares_is_refused(name, part, save):
    data = with_length(content_of(name), name, part)
    path = save(data)
    for segment in ({}, {"duration": 0.02}):
        assert "header declares" in refusal(path, **segment)
    with refused(AudioError, "header declares", cure="NEW.wav"):
        audio_info("a shard", data)


@pytest.mark.parametrize("name", DECLARED)
@pytest.mark.parametrize("second", [0.3, 4.1, 6.0])
def test_joined_files_are_refused_because_only_the_first_would_be_decoded(name, second, save):
    other = "flac" if name == "flac" else "wav"
    assert "several in a row" in refusal(save(content_of(name) + encoded(other, second)))
    assert "several in a row" in refusal(save(content_of(name) * 2), offset=0.5, duration=0.2)


def test_a_flac_with_frames_of_another_file_is_refused(save):
    whole, other = encoded("flac"), encoded("flac", 2.0)
    assert "header declares" in refusal(save(whole + other[other.index(b"\xff\xf8") :]))


def test_a_long_flac_is_checked_again_only_if_it_was_changed(save, monkeypatch):
    monkeypatch.setattr("asr.base.audio.flac._LONG_BYTES", 1000)
    counts = []
    count = flac._count_samples
    monkeypatch.setattr(flac, "_count_samples", lambda *args: counts.append(1) or count(*args))
    path = save(encoded("flac"))
    for offset in (0.0, 1.0, 2.0):
        load_waveform(path, RATE, offset=offset, duration=0.5)
    assert len(counts) == 1
    save(encoded("flac") * 2)
    assert "several in a row" in refusal(path, offset=1.0, duration=0.5)


@pytest.mark.parametrize("num_channels", [1, 2, 3])
@pytest.mark.parametrize("subtype", ["PCM_S8", "PCM_16", "PCM_24"])
@pytest.mark.parametrize("rate", [8000, 12345, 44100, 96000])
def test_the_samples_of_any_flac_are_counted_from_its_frames(num_channels, subtype, rate, tmp_path):
    for num_samples in (1, 200, 4096, 10007):
        samples = np.random.default_rng(0).standard_normal((num_samples, num_channels)) / 10
        data = encode(samples, rate, "FLAC", subtype)
        path = tmp_path / "x.flac"
        path.write_bytes(data[data.index(b"\xff\xf8") :])
        with path.open("rb") as file:
            assert flac._count_samples(file, "x") == num_samples


TAGS = {
    "ID3v1": b"TAG" + b"title".ljust(125, b"\0"),
    "APE": b"APETAGEX" + bytes(range(200)),
    "ID3v2": b"ID3\x04\0\0\0\0\x01\x00" + bytes(range(128)),
    "zeros": bytes(5000),
    "zeros and a tag": bytes(512) + b"TAG" + b"title".ljust(125, b"\0"),
    "a few bytes": b"\r\n\x1a\x05",
}


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("name", DECLARED)
def test_tags_and_a_few_bytes_after_the_audio_are_ignored(name, tag, save):
    data = content_of(name)
    assert torch.equal(load_waveform(save(data + TAGS[tag]), RATE), load_waveform(save(data, "plain"), RATE))


@pytest.mark.parametrize("chunks", [(b"LIST",), (b"JUNK", b"LIST"), (b"bext", b"id3 ", b"cue "), (b"_PMX", b"iXML")])
@pytest.mark.parametrize("size", [0, 3, 70_000])
def test_chunks_without_audio_may_follow_the_audio(chunks, size, save):
    odd = (np.arange(1001) % 256).astype(np.uint8).tobytes()
    rest = [chunk(identifier, b"\x81" * size) for identifier in chunks]
    expected = load_waveform(save(wav_of(fmt(bits=8), chunk(b"data", odd)), "plain"), RATE)
    for pad in (True, False):
        data = wav_of(fmt(bits=8), chunk(b"data", odd, pad=pad), *rest)
        for ending in (b"", b"\0", TAGS["ID3v1"]):
            assert torch.equal(load_waveform(save(data + ending), RATE), expected)
    if size and b"LIST" in chunks[-1:]:  # the file was cut within a chunk that follows the audio
        assert torch.equal(load_waveform(save(data[:-1]), RATE), expected)


def test_a_second_chunk_of_audio_is_refused(save):
    data = wav_of(fmt(), chunk(b"data", PCM.tobytes()), chunk(b"LIST", b"abcd"), chunk(b"data", PCM.tobytes()))
    assert "header declares" in refusal(save(data))


@pytest.mark.parametrize("name", ["wav", "aiff", "caf", "au", "flac", "vorbis"])
def test_a_tag_before_the_audio_is_ignored(name, save):
    """libsndfile drops the end of a WAV or AIFF file with a tag before it, and does not read Ogg and CAF files."""
    data = content_of(name)
    path = save(TAGS["ID3v2"] + data)
    assert torch.equal(load_waveform(path, RATE), load_waveform(save(data, "plain"), RATE))
    if name != "vorbis":
        assert "header declares" in refusal(save(TAGS["ID3v2"] + with_length(data, name, 0.5)))
    refusal(save(TAGS["ID3v2"] + data[:-200]))
    assert torch.equal(load_waveform(save(TAGS["ID3v2"] + bytes(1000) + data), RATE), load_waveform(save(data), RATE))


@pytest.mark.parametrize("start", [b"", TAGS["ID3v2"], 2 * TAGS["ID3v2"]])
@pytest.mark.parametrize("size", [1, 3, 4, 417, 1024, 40_000])
@pytest.mark.parametrize("with_count", [True, False])
def test_zeros_before_the_first_frame_of_an_mp3_are_ignored(start, size, with_count, save):
    data = mp3() if with_count else without_header(mp3())
    padded = save(start + bytes(size) + data)
    assert torch.equal(load_waveform(padded, RATE), load_waveform(save(data, "plain"), RATE))
    assert audio_info(padded) == audio_info(save(data, "plain"))


def ogg_of(flac_file: bytes, page_bytes: int = 5000) -> bytes:
    """Put a FLAC file into the pages of an Ogg file, without their checksums."""
    headers = b"\x7fFLAC\x01\0\0\x01" + flac_file[:42]  # up to the end of STREAMINFO
    bodies = [headers, *(flac_file[start : start + page_bytes] for start in range(42, len(flac_file), page_bytes))]
    pages = []
    for number, body in enumerate(bodies):
        flags = 2 * (number == 0) + 4 * (number == len(bodies) - 1)
        laces = bytes([255] * (len(body) // 255) + [len(body) % 255])
        pages.append(b"OggS\0" + struct.pack("<BQIIIB", flags, 0, 7, number, 0, len(laces)) + laces + body)
    return b"".join(pages)


@pytest.mark.parametrize("name", ["flac", "flac24"])
def test_flac_in_ogg_gives_the_samples_of_the_flac(name, save):
    whole = encoded(name)
    expected, path = load_waveform(save(whole, "x.flac"), RATE), save(ogg_of(whole), "x.oga")
    assert torch.equal(load_waveform(path, RATE), expected)
    assert audio_info(path).num_samples == len(expected)
    assert torch.equal(load_waveform(path, RATE, offset=1.5, duration=1.0), expected[24000:40000])


def test_truncated_flac_in_ogg_is_refused(save):
    whole = ogg_of(encoded("flac", 1.0))
    pages = [match.start() for match in re.finditer(b"OggS", whole)]
    assert len(pages) > 4
    for cut in {*range(1, 400), *range(400, len(whole), 97), *range(len(whole) - 100, len(whole)), *pages[1:]}:
        refusal(save(whole[:cut]))
    for first, second in itertools.pairwise(pages[1:]):  # a page is lost
        assert "truncated" in refusal(save(whole[:first] + whole[second:]))


def test_flac_in_ogg_with_more_samples_than_it_declares_or_a_damaged_frame_is_refused(save):
    whole = encoded("flac")
    refusal(save(ogg_of(with_flac_length(whole, 1000))))
    damaged = bytearray(ogg_of(whole))
    damaged[len(damaged) // 2] ^= 0xFF
    refusal(save(bytes(damaged)))


@pytest.mark.parametrize(
    "content",
    [
        *(head.ljust(2000, b"\x55") for head in (b"#!AMR\n", b"wvpk", b"TTA1", b"\xff\xf1\x60\x40\x04\x1f\xfc")),
        wav_of(chunk(b"fmt ", struct.pack("<HHIIHH", 0x28F, 1, RATE, 8000, 1, 4)), chunk(b"data", bytes(800))),  # G.722
        wav_of(chunk(b"fmt ", b"\xff" * 16), chunk(b"data", bytes(800))),
        b"caff\0\1\0\0desc" + struct.pack(">QdIIIII", 32, RATE, 0x616C6163, 0, 0, 4096, 1) + bytes(800),  # ALAC
    ],
)
def test_audio_that_libsndfile_refuses_is_refused_with_a_cure(content, save):
    with refused(AudioError, "libsndfile", cure="ffmpeg -i FILE NEW.wav"):
        load_waveform(save(content), RATE)


def test_chained_ogg_streams_are_refused_because_only_the_first_would_be_decoded(save):
    for name in ("vorbis", "opus"):
        assert "several in a row" in refusal(save(encoded(name) * 2))
        assert "several in a row" in refusal(save(encoded(name) + encoded(name, 12.3)))


def test_bytes_after_the_last_ogg_page_are_ignored(save):
    data = encoded("vorbis")
    assert torch.equal(load_waveform(save(data + bytes(500)), RATE), load_waveform(save(data), RATE))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_loaded_or_refused_in_one_line(save, data):
    name = data.draw(st.sampled_from(CHECKED))
    damaged = bytearray(encoded(name, 0.5))
    for _ in range(data.draw(st.integers(1, 8))):
        area = data.draw(st.sampled_from([64, 600, len(damaged)]))
        damaged[data.draw(st.integers(0, min(area, len(damaged)) - 1))] = data.draw(st.integers(0, 255))
    path = save(bytes(damaged))
    waveform, message = None, ""
    try:
        waveform = load_waveform(path, RATE)
    except AudioError as error:
        message = str(error)
    if waveform is None:
        assert message.startswith(f"{path}: ")
        assert message.isprintable()
    else:
        assert waveform.numel() > 0
        assert waveform.isfinite().all()


# ---- folders


def test_find_audio_returns_a_given_file_or_the_sorted_audio_files_below_a_folder(tmp_path):
    expected = ["a.mp3", "b/10.WAV", "b/2.flac", "b/c/x.opus", *(f"d/{n}.ogg" for n in range(10, 40))]
    for name in [*reversed(expected), "b/notes.txt", "b/._2.flac", ".cache/y.wav"]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()
    assert find_audio(tmp_path) == [tmp_path / name for name in expected]
    assert find_audio(str(tmp_path / "b/notes.txt")) == [tmp_path / "b/notes.txt"]


def test_find_audio_gives_the_reason_if_there_is_no_audio(tmp_path):
    with refused(AudioError, "gone ... no such file"):
        find_audio(tmp_path / "gone")
    with refused(AudioError, "'' ... no such file") as raised:
        find_audio("")
    assert "Unicode" not in str(raised.value)
    (tmp_path / "notes.txt").touch()
    with refused(AudioError, f"{tmp_path} ... .flac ... none below it"):
        find_audio(tmp_path)


# ---- real files


def test_librispeech_loads_and_its_durations_equal_those_in_the_headers():
    folder = DATA / "LibriSpeech"
    if not folder.is_dir():
        pytest.skip("needs ../shared/data/LibriSpeech")
    files = find_audio(folder)
    for path in files[:: len(files) // 10]:
        waveform = load_waveform(path, RATE)
        assert audio_info(path) == (RATE, 1, waveform.numel())
        assert 0.01 < waveform.std() < 0.5
        segment = load_waveform(path, RATE, offset=0.7, duration=0.5)
        assert torch.equal(segment, waveform[11200:19200])


def test_spoken_digits_of_8_khz_load_at_16_khz():
    folder = DATA / "free-spoken-digit-dataset"
    if not folder.is_dir():
        pytest.skip("needs ../shared/data/free-spoken-digit-dataset")
    files = find_audio(folder)
    assert len(files) == 3000
    for path in files[::30]:
        rate, _, num_samples = audio_info(path)
        assert rate == 8000
        waveform = load_waveform(path, RATE)
        assert waveform.shape == (2 * num_samples,)
        assert torch.allclose(waveform[::2][200:-200], load_waveform(path, 8000)[200:-200], atol=0.05)
