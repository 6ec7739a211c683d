"""python -m benchmarks.silence MODEL AUDIO...: errors with silence around speech, and words recognised in non-speech.

Silence around speech is digital silence, or noise 70 dB below full scale. Non-speech is a minute each of digital
silence, white noise and musical chords, in recordings of a few seconds with random lengths and levels.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from asr.base.text.word_errors import count_errors, total
from asr.core.checkpoint.load import load_recognizer
from asr.core.cli.command import run_command
from asr.core.data.dataset import load_utterance
from asr.core.recognition.recognizer import Recognizer
from benchmarks.machine import about
from benchmarks.model import add_model, read_utterances
from benchmarks.results import Columns, Results, fixed, share

NOISE_LEVEL = 10 ** (-70 / 20)  # amplitude relative to full scale
PADDINGS = {"none": (0.0, 0.0), "digital": (0.0, 1.0), "digital, long": (0.0, 5.0), "noise": (NOISE_LEVEL, 1.0)}
PADDINGS |= {"noise, long": (NOISE_LEVEL, 5.0)}  # level, seconds at each end
NUM_RECORDINGS, MEAN_SECONDS = 20, 3.0  # number and mean length of the recordings of non-speech
COLUMNS: Columns = {"input": str, "seconds at each end": fixed(0), "WER": share, "inserted words/minute": fixed(1)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per kind of silence around speech, and one per kind of non-speech."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.silence", description=__doc__.splitlines()[0])
    add_model(parser)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks"), metavar="DIR")
    options = parser.parse_args(arguments)
    recognizer = load_recognizer(options.model)
    rate, draw = recognizer.model.features.sample_rate, torch.Generator().manual_seed(0)
    utterances = list(read_utterances(options.audio))
    waveforms = [load_utterance(utterance, rate) for utterance in utterances]
    references = [recognizer.model.normalize(utterance.text) for utterance in utterances]
    facts = about(options)
    results = Results("silence", COLUMNS, bars="WER")
    for name, (level, seconds) in PADDINGS.items():
        length = round(seconds * rate)
        padded = []
        for waveform in waveforms:
            before, after = (level * torch.randn(length, generator=draw) for _ in range(2))
            padded.append(torch.cat([before, waveform, after]))
        counts = total(map(count_errors, references, texts(recognizer, padded)))
        results.row(f"speech, silence around it: {name}", seconds, counts.rate, None)
    for name, make in NON_SPEECH.items():
        recordings = [make(rate, draw) for _ in range(NUM_RECORDINGS)]
        words = sum(len(text.split()) for text in texts(recognizer, recordings))
        results.row(f"no speech: {name}", None, None, 60 * words / (sum(map(len, recordings)) / rate))
    results.save(options.output_dir, facts)
    return 0


def texts(recognizer: Recognizer, waveforms: Sequence[Tensor]) -> list[str]:
    """Return the texts recognised in waveforms (S,)."""
    return [transcript.text for transcript in recognizer.transcribe(waveforms, sample_rate=16_000)]


def _draw_length_and_level(rate: int, draw: torch.Generator) -> tuple[int, float]:
    """Draw a length in samples with a mean of MEAN_SECONDS, and a level of 40 to 10 dB below full scale."""
    length, level = torch.rand(2, generator=draw).tolist()
    return round((0.5 + length) * MEAN_SECONDS * rate), 10 ** (-(10 + 30 * level) / 20)


def _silence(rate: int, draw: torch.Generator) -> Tensor:
    return torch.zeros(_draw_length_and_level(rate, draw)[0])


def _noise(rate: int, draw: torch.Generator) -> Tensor:
    length, level = _draw_length_and_level(rate, draw)
    return level * torch.randn(length, generator=draw)


def _chords(rate: int, draw: torch.Generator) -> Tensor:
    """Make chords of three notes, four chords per second; each note has three harmonics that decay."""
    length, level = _draw_length_and_level(rate, draw)
    time = torch.arange(rate // 4) / rate
    sound = torch.zeros(0)
    while len(sound) < length:
        notes = 110 * 2 ** (torch.randint(36, (3,), generator=draw) / 12)  # semitones of three octaves
        waves = [torch.sin(2 * torch.pi * note * n * time) / n for note in notes.tolist() for n in (1, 2, 3)]
        sound = torch.cat([sound, torch.stack(waves).sum(dim=0) * torch.exp(-6 * time)])
    return level * sound[:length]


NON_SPEECH: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "digital silence": _silence,
    "white noise": _noise,
    "chords": _chords,
}

if __name__ == "__main__":
    run_command(main)
