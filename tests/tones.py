"""A language of pure tones, which a tiny net can learn in seconds: each letter is a pitch."""

from pathlib import Path

import numpy as np
import soundfile

from asr.core.data.manifest import Utterance, write_manifest

SAMPLE_RATE = 16000
LETTER_SECONDS, GAP_SECONDS = 0.12, 0.04
PITCHES = {letter: 300.0 * 1.35**number for number, letter in enumerate("abcdef")}  # Hz; up to 1.3 kHz


def speak(text: str) -> np.ndarray:
    """Synthesise `text`: a tone for each letter, silence for a space, and a short gap after each character."""
    times = np.arange(round(LETTER_SECONDS * SAMPLE_RATE)) / SAMPLE_RATE
    gap = np.zeros(round(GAP_SECONDS * SAMPLE_RATE))
    envelope = np.hanning(len(times))
    sounds = [0.3 * envelope * np.sin(2 * np.pi * PITCHES.get(letter, 0.0) * times) for letter in text]
    return np.concatenate([part for sound in sounds for part in (sound, gap)] or [gap]).astype(np.float32)


def write_corpus(folder: Path, texts: dict[str, list[str]], seed: int = 0) -> None:
    """Write `<split>.jsonl` and its audio for each split."""
    noise = np.random.default_rng(seed)
    for split, lines in texts.items():
        utterances = []
        for number, text in enumerate(lines):
            path = folder / "audio" / f"{split}-{number}.flac"
            path.parent.mkdir(parents=True, exist_ok=True)
            waveform = speak(text)
            waveform += 0.003 * noise.standard_normal(len(waveform)).astype(np.float32)
            soundfile.write(path, waveform, SAMPLE_RATE)
            utterances.append(Utterance(str(path), len(waveform) / SAMPLE_RATE, text, f"{split}-{number}"))
        write_manifest(folder / f"{split}.jsonl", utterances)


def sentences(count: int, seed: int, words: tuple[int, int] = (1, 4)) -> list[str]:
    """Draw sentences of words of two to four letters; neighbouring letters differ."""
    draw = np.random.default_rng(seed)
    letters = "abcdef"

    def word() -> str:
        spelled = ""
        for _ in range(draw.integers(2, 5)):
            spelled += draw.choice([letter for letter in letters if letter != spelled[-1:]])
        return spelled

    return [" ".join(word() for _ in range(draw.integers(words[0], words[1] + 1))) for _ in range(count)]
