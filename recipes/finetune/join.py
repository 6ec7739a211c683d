"""Join the utterances of a manifest into one long recording, to test how long recordings are cut into segments.

    python -m recipes.finetune.join speech/test.jsonl --repeat 6 --wrong 3 --output-dir data/joined

This writes `joined.flac`, `joined.jsonl` (the recording as one utterance with one text) and `parts.jsonl` (each
utterance as a segment of the recording). Each repetition has the utterances in another random order; there is no pause
between utterances.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import soundfile

from asr.base.audio.load import load_waveform
from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from asr.errors import InputError
from recipes.command import ROOM, AddOption, run_recipe
from recipes.output import claim

SAMPLE_RATE = 16_000  # Hz


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe("recipes.finetune.join", __doc__, _add_options, _run, arguments, must=ROOM)


def _run(options: argparse.Namespace) -> None:
    utterances = in_order(read_manifest(options.manifest), options.repeat, options.seed)
    joined, parts = join(utterances, options.output_dir, options.wrong)
    print(f"joined.flac: {len(parts)} utterances, {joined.duration / 60:.1f} minutes")


def in_order(utterances: Sequence[Utterance], repeat: int, seed: int) -> list[Utterance]:
    """Return `repeat` copies of the utterances, each copy in a random order and with ids of its own.

    Raises:
        InputError: `repeat` is less than 1.
    """
    if repeat < 1:
        raise InputError(f"--repeat must be at least 1; got {repeat}.")
    draw = random.Random(seed)
    rounds = [draw.sample(utterances, len(utterances)) for _ in range(repeat)]
    return [
        replace(utterance, id=f"{utterance.id}-{number}") for number, order in enumerate(rounds) for utterance in order
    ]


def join(utterances: Sequence[Utterance], output_dir: Path, num_wrong: int) -> tuple[Utterance, list[Utterance]]:
    """Write the recording and its two manifests; return their utterances.

    Args:
        utterances: in the order of the recording.
        output_dir: folder of the files.
        num_wrong: number of utterances in the middle whose texts are replaced, in `joined.jsonl` only, by the texts
            of the first utterances.

    Raises:
        InputError: audio cannot be read, or there are too few utterances for this number of wrong texts.
        OSError: a file cannot be written.
    """
    middle = len(utterances) // 2
    if not 0 <= num_wrong <= middle:
        raise InputError(
            f"--wrong must be at least 0, and at most half of {len(utterances)} utterances; got {num_wrong}."
        )
    claim(output_dir, "recipes.finetune.join", ["joined.flac", "joined.jsonl", "parts.jsonl"])
    audio = output_dir / "joined.flac"
    parts = []
    num_samples = 0
    with soundfile.SoundFile(audio, "w", SAMPLE_RATE, 1) as recording:
        for utterance in utterances:
            waveform = load_waveform(
                utterance.audio_filepath, SAMPLE_RATE, offset=utterance.offset, duration=utterance.duration
            )
            recording.write(waveform.numpy())
            offset, duration = num_samples / SAMPLE_RATE, len(waveform) / SAMPLE_RATE
            parts.append(replace(utterance, audio_filepath=str(audio), offset=offset, duration=duration))
            num_samples += len(waveform)
    texts = [utterance.text for utterance in utterances]
    texts[middle : middle + num_wrong] = texts[:num_wrong]
    joined = Utterance(str(audio), num_samples / SAMPLE_RATE, " ".join(texts), id="joined")
    write_manifest(output_dir / "joined.jsonl", [joined])
    write_manifest(output_dir / "parts.jsonl", parts)
    return joined, parts


def _add_options(add: AddOption) -> None:
    add("manifest", type=Path, metavar="MANIFEST", help="JSONL, one utterance per line")
    add("--output-dir", type=Path, required=True, metavar="DIR", help="for joined.flac, joined.jsonl and parts.jsonl")
    add("--repeat", type=int, default=1, metavar="N", help="number of times that each utterance occurs (1)")
    add("--wrong", type=int, default=0, metavar="N", help="number of utterances in the middle with wrong texts (0)")
    add("--seed", type=int, default=0, metavar="N", help="seed of the order (0)")


if __name__ == "__main__":
    sys.exit(main())
