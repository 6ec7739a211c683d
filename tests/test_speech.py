"""Silent or steady audio is not passed to the net; speech is, even if faint, in loud noise or with an offset."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from asr.apps.serve.schema import Transcription
from asr.base.audio.load import load_waveform
from asr.base.audio.speech import may_hold_speech
from asr.core.checkpoint.load import load_recognizer
from asr.core.recognition.chunks import ChunkBounds
from asr.core.recognition.inference import Inference
from asr.core.recognition.long_form import Segmenter, at_silences
from asr.transcribe import main as transcribe
from recipes.noise.make import MAKERS, levelled
from tests.conftest import SHARED, needs_shared
from tests.tones import speak

RATE = 16_000
STEADY = ("silence", "white", "pink", "hum", "band")


def made(kind: str, seconds: float, seed: int) -> Tensor:
    random = np.random.default_rng([seed, len(kind)])
    waveform = levelled(MAKERS[kind](round(seconds * RATE), random), random)
    return torch.from_numpy(np.round(waveform * 2**15) / 2**15).float()


def mixed(speech: Tensor, noise: Tensor, snr_db: float) -> Tensor:
    scale = speech.square().mean() / noise.square().mean() / 10 ** (snr_db / 10)
    return speech + noise * scale.sqrt()


@pytest.mark.parametrize("seconds", [1.1, 8.0])
@pytest.mark.parametrize("kind", STEADY)
def test_silent_or_steady_audio_is_not_speech_at_any_loudness(kind: str, seconds: float) -> None:
    for seed in range(2):
        noise = made(kind, seconds, seed)
        for gain in (1.0, 1e-2):
            assert not may_hold_speech(gain * noise, RATE)
        assert not may_hold_speech(noise + 0.2, RATE), "a constant offset is not speech"


def test_ambiguous_audio_is_treated_as_speech() -> None:
    assert may_hold_speech(made("tones", 4.0, 0), RATE), "the level of music varies like that of speech"
    assert may_hold_speech(made("white", 0.9, 0), RATE), "a single speech sound is also steady"


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda speech: speech,
    "faint, in 16 bits": lambda speech: torch.round(speech / speech.abs().max() * 30) / 2**15,
    "with an offset": lambda speech: speech + 0.3,
    "in half a minute of silence": lambda speech: torch.cat([torch.zeros(14 * RATE), speech, torch.zeros(14 * RATE)]),
    "in half a minute of hiss": lambda speech: (
        torch.nn.functional.pad(speech, (14 * RATE, 14 * RATE))
        + 0.1 * speech.std() * torch.randn(len(speech) + 28 * RATE)
    ),
}


@needs_shared
@pytest.mark.parametrize("change", CHANGES)
def test_real_speech_is_always_detected(change: str) -> None:
    for path in sorted((SHARED / "LibriSpeech" / "dev-mini").rglob("*.flac"))[::5]:
        assert may_hold_speech(CHANGES[change](load_waveform(path, RATE)[: 2 * RATE]), RATE), path


@needs_shared
@pytest.mark.parametrize("kind", ["white", "pink", "hum"])
def test_real_speech_is_detected_in_equally_loud_noise(kind: str) -> None:
    for seed, path in enumerate(sorted((SHARED / "LibriSpeech" / "test-other-mini").rglob("*.flac"))[::8]):
        speech = load_waveform(path, RATE)
        assert may_hold_speech(mixed(speech, made(kind, len(speech) / RATE + 0.1, seed)[: len(speech)], 0.0), RATE), (
            path
        )


TONES = {
    "mains": [50.0],
    "hum of all harmonics": [50.0 * number for number in range(1, 60)],
    "buzz": [119.7 * number for number in range(1, 26)],
    "concert pitch": [440.0],
    "whistles": [1003.0, 2507.0, 4003.0],
    "whine": [6500.0],
}


def tone(name: str, num_samples: int) -> Tensor:
    seconds = torch.arange(num_samples, dtype=torch.float64) / RATE
    return sum((2 * torch.pi * hertz * seconds + hertz).sin() for hertz in TONES[name]).float()  # type: ignore[union-attr]


def in_16_bits(waveform: Tensor) -> Tensor:
    return torch.round(0.9 * waveform / waveform.abs().max() * 2**15) / 2**15


@pytest.mark.parametrize("name", TONES)
def test_pure_tones_are_not_speech(name: str) -> None:
    for seconds in (1.1, 10.0):
        assert not may_hold_speech(in_16_bits(tone(name, round(seconds * RATE))), RATE)


@pytest.mark.slow
@needs_shared
@pytest.mark.parametrize("name", TONES)
def test_real_speech_is_detected_under_tones_a_hundred_times_as_loud(name: str) -> None:
    paths = sorted((SHARED / "LibriSpeech" / "dev-mini").rglob("*.flac"))[:24]
    assert len(paths) == 24
    for path in paths:
        speech = load_waveform(path, RATE)
        for snr_db in (-20.0, -40.0):
            assert may_hold_speech(in_16_bits(mixed(speech, tone(name, len(speech)), snr_db)), RATE), path


@pytest.mark.parametrize("way", [None, at_silences])
def test_long_recordings_without_speech_are_not_passed_to_the_net(way: Segmenter | None, fluent: Path) -> None:
    """The audio without speech is a whole recording of at least 35 s, or 90 s between two sentences."""
    recognizer = load_recognizer(fluent / "run")
    speech = torch.from_numpy(speak("ab cd ef")).float()
    hiss = 0.003 * torch.randn(95 * RATE, generator=torch.Generator().manual_seed(0))
    options = Inference(segmenter=way)
    encoded = []
    hook = recognizer.model.encoder.register_forward_hook(lambda _, inputs, __: encoded.append(inputs[0].shape[1]))
    for nothing in (torch.zeros(35 * RATE), hiss[: 35 * RATE], hiss, in_16_bits(tone("buzz", 61 * RATE))):
        transcript = recognizer.transcribe(nothing, options, sample_rate=RATE)
        assert (transcript.text, transcript.words, transcript.speech) == ("", (), False)
    assert encoded == []
    for nothing in (torch.zeros(90 * RATE), hiss[: 90 * RATE]):
        both = torch.cat([speech, nothing, speech])
        transcript = recognizer.transcribe(both, options, sample_rate=RATE)
        starts = [word.start for word in transcript.words]
        assert min(starts) < 1
        assert max(starts) > (len(speech) + len(nothing)) / RATE, "words after the silence have their true times"
        assert all(start < 26 or start > 66 for start in starts), "chunks in the middle are not passed to the net"
    hook.remove()


@needs_shared
@pytest.mark.slow
def test_no_real_recording_is_treated_as_silence() -> None:
    paths = [path for kind in ("flac", "opus", "wav") for path in sorted(SHARED.rglob(f"*.{kind}"))]
    assert len(paths) > 5000
    assert [path for path in paths if not may_hold_speech(load_waveform(path, RATE), RATE)] == []


def test_a_transcript_without_speech_has_no_words_and_its_field_speech_is_false(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speech, noise = torch.from_numpy(speak("ab cd ef")).float(), 0.1 * torch.randn(round(4.4 * RATE))
    soundfile.write(tmp_path / "noise.wav", noise.numpy(), RATE)
    recognizer = load_recognizer(fluent / "run")
    transcript, nothing = recognizer.transcribe([speech, noise], sample_rate=16_000)
    assert (transcript.text, transcript.speech) == ("ab cd ef", True)
    assert (nothing.text, nothing.words, nothing.speech) == ("", (), False)
    chunks = Inference(chunks=ChunkBounds(2, 0.25))
    [in_chunks, silence] = recognizer.transcribe([noise, torch.zeros_like(noise)], chunks, sample_rate=16_000)
    assert [(each.text, each.words, each.speech) for each in (in_chunks, silence)] == [("", (), False)] * 2
    assert transcribe([str(fluent / "run"), str(tmp_path / "noise.wav"), "--format", "jsonl"]) == 0
    out, err = capsys.readouterr()
    assert Transcription.model_validate(json.loads(out) | {"id": "noise.wav"}).speech is False
    assert "noise.wav: no speech\n" in err
