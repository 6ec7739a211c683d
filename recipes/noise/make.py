"""Make recordings without intelligible speech: noise to mix into speech, and audio without words for tests.

    python -m recipes.noise.make --output-dir data/noise/train --speech train.jsonl
    python -m recipes.noise.make --output-dir data/noise/test --speech dev.jsonl --seed 1
    python -m recipes.noise.make --output-dir data/nothing --kinds silence white pink hum tones band

For each kind, this writes a folder of recordings and a manifest with empty texts. The folder can be given to
`augment=[noise]` and to `asr.evaluate --noise`. In the recordings of the manifest, a model should recognise no words;
`asr.evaluate` counts the words that it does recognise. Equal options give identical bytes. Babble is made from speech:
for tests, use speech and a seed that training has not used.
"""

import argparse
import sys
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from asr.base.audio.encode import encode_audio
from asr.base.audio.load import load_waveform
from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from asr.errors import InputError
from recipes.command import ROOM, AddOption, run_recipe
from recipes.output import claim

SAMPLE_RATE = 16_000
LOUDNESS_DB = (-35, -20)  # minimum and maximum mean square of a recording, in dB relative to 1
VOICES = (3, 8)  # minimum and maximum number of voices in babble
PEAK = 0.99

Random = np.random.Generator
Maker = Callable[[int, Random], np.ndarray]  # makes a waveform with the given number of samples


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe("recipes.noise.make", __doc__, _add_options, _run, arguments, must=ROOM)


def _run(options: argparse.Namespace) -> None:
    if options.number < 1 or not 0.1 <= options.seconds <= 3600:
        raise InputError(
            f"--number must be at least 1, --seconds from 0.1 to 3600; got {options.number}, {options.seconds}."
        )
    if "babble" in options.kinds and options.speech is None:
        raise InputError("--speech must name a manifest, from which babble is made; give one, or leave out babble.")
    makers = MAKERS | ({"babble": partial(babble, read_manifest(options.speech))} if options.speech else {})
    names = [name for kind in options.kinds for name in (kind, f"{kind}.jsonl")]
    claim(options.output_dir, "recipes.noise.make", names)
    for kind in options.kinds:
        write(options.output_dir, kind, makers[kind], options.number, options.seconds, options.seed)
        print(f"{options.output_dir / kind}: {options.number} recordings of {options.seconds:g} s")


def write(folder: Path, kind: str, make: Maker, number: int, seconds: float, seed: int) -> None:
    """Write the recordings of a kind and their manifest; a recording depends only on seed, kind and index."""
    (folder / kind).mkdir(parents=True, exist_ok=True)
    utterances = []
    for index in range(number):
        random = np.random.default_rng([seed, zlib.crc32(kind.encode()), index])
        waveform = make(round(seconds * SAMPLE_RATE), random)
        path = folder / kind / f"{index:03}.flac"
        # libsndfile would not raise OSError if the disk is full
        path.write_bytes(encode_audio(levelled(waveform, random), SAMPLE_RATE, "FLAC", "PCM_16"))
        utterances.append(Utterance(str(path), len(waveform) / SAMPLE_RATE, "", f"{kind}-{index:03}"))
    write_manifest(folder / f"{kind}.jsonl", utterances)


def levelled(waveform: np.ndarray, random: Random) -> np.ndarray:
    """Scale a waveform to a random loudness, without exceeding full scale; silence is not changed."""
    loudness = 10 ** (random.uniform(*LOUDNESS_DB) / 20)
    largest = np.abs(waveform).max()
    if largest < 1e-2:
        return waveform
    return waveform * min(loudness / np.sqrt(np.mean(waveform**2)), PEAK / largest)


def silence(num_samples: int, random: Random) -> np.ndarray:
    """Return digital silence or the faint noise of an open line."""
    level = random.choice([0.0, 10 ** (random.uniform(-90, -65) / 20)])
    return level * random.standard_normal(num_samples)


def white(num_samples: int, random: Random) -> np.ndarray:
    """Return noise with equal power at each frequency."""
    return random.standard_normal(num_samples)


def pink(num_samples: int, random: Random) -> np.ndarray:
    """Return noise with equal power in each octave from 20 Hz on."""
    frequency = np.maximum(np.fft.rfftfreq(num_samples, 1 / SAMPLE_RATE), 20)
    return np.fft.irfft(np.fft.rfft(random.standard_normal(num_samples)) / np.sqrt(frequency), num_samples)


def hum(num_samples: int, random: Random) -> np.ndarray:
    """Return mains hum of 50 or 60 Hz with decreasing harmonics, and a little hiss."""
    time = np.arange(num_samples) / SAMPLE_RATE
    mains = random.choice([50.0, 60.0]) * random.uniform(0.999, 1.001)
    waveform = 0.01 * random.standard_normal(num_samples)
    for harmonic in range(1, 16):
        strength, phase = random.uniform(0.2, 1) / harmonic, random.uniform(0, 2 * np.pi)
        waveform += strength * np.sin(2 * np.pi * mains * harmonic * time + phase)
    return waveform


def tones(num_samples: int, random: Random) -> np.ndarray:
    """Return decaying notes of a scale with overtones, several notes at once, similar to music."""
    waveform = np.zeros(num_samples)
    beat = random.uniform(0.15, 0.5)
    scale = 110 * 2 ** (random.integers(12) / 12) * 2 ** (np.array([0, 2, 4, 7, 9, 12, 14, 16, 19, 21]) / 12)
    for start in range(0, num_samples, round(beat * SAMPLE_RATE)):
        time = np.arange(min(num_samples - start, 2 * SAMPLE_RATE)) / SAMPLE_RATE
        for pitch in random.choice(scale, size=random.integers(1, 4), replace=False):
            overtones = sum(np.sin(2 * np.pi * pitch * n * time) / n**1.5 for n in range(1, 6))
            waveform[start : start + len(time)] += overtones * np.exp(-time / random.uniform(0.1, 0.6))
    return waveform


def band(num_samples: int, random: Random) -> np.ndarray:
    """Return noise in a narrow band in which speech has little power, switched on and off like syllables."""
    low = random.uniform(3500, 6500)
    frequency = np.fft.rfftfreq(num_samples, 1 / SAMPLE_RATE)
    spectrum = np.fft.rfft(random.standard_normal(num_samples)) * ((frequency > low) & (frequency < low + 1000))
    lengths = random.uniform(0.05, 0.4, size=int(num_samples / SAMPLE_RATE / 0.05) + 1)
    switches = np.repeat(np.arange(len(lengths)) % 2, np.round(lengths * SAMPLE_RATE).astype(int))[:num_samples]
    return np.fft.irfft(spectrum, num_samples) * switches


def babble(utterances: Sequence[Utterance], num_samples: int, random: Random) -> np.ndarray:
    """Return a mixture of several equally loud voices; each voice is a sequence of utterances."""
    mixed = np.zeros(num_samples)
    for _ in range(random.integers(VOICES[0], VOICES[1] + 1)):
        voice = np.zeros(0)
        offset = int(random.integers(SAMPLE_RATE))  # so that the voices do not begin at the same time
        while len(voice) < offset + num_samples:
            utterance = utterances[int(random.integers(len(utterances)))]
            duration = None if utterance.offset is None else utterance.duration
            spoken = load_waveform(utterance.audio_filepath, SAMPLE_RATE, offset=utterance.offset, duration=duration)
            voice = np.concatenate([voice, spoken.numpy()])
        voice = voice[offset : offset + num_samples]
        mixed += voice / max(np.sqrt(np.mean(voice**2)), 1e-9)
    return mixed


MAKERS: dict[str, Maker] = {
    "silence": silence,
    "white": white,
    "pink": pink,
    "hum": hum,
    "tones": tones,
    "band": band,
}


def _add_options(add: AddOption) -> None:
    add("--output-dir", type=Path, required=True, metavar="DIR", help="for KIND/*.flac and KIND.jsonl")
    add("--speech", type=Path, metavar="MANIFEST", help="utterances for babble")
    add(
        "--kinds",
        nargs="+",
        choices=(*MAKERS, "babble"),
        default=["white", "pink", "hum", "babble"],
        metavar="KIND",
        help=f"any of {', '.join(MAKERS)}, babble (white pink hum babble)",
    )
    add("--number", type=int, default=20, metavar="N", help="number of recordings of each kind (20)")
    add("--seconds", type=float, default=30.0, metavar="S", help="length of each recording in seconds (30)")
    add("--seed", type=int, default=0, metavar="N", help="random seed (0)")


if __name__ == "__main__":
    sys.exit(main())
