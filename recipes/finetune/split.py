"""Split the speakers of a manifest into training and validation.

    python -m recipes.finetune.split speech/train.jsonl --output-dir data/mine

This writes `train.jsonl` and `valid.jsonl`: no speaker is in both, and the choice of speakers depends only on the seed.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from asr.errors import InputError
from recipes.command import ROOM, AddOption, run_recipe
from recipes.output import claim

Splits = dict[str, list[Utterance]]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe("recipes.finetune.split", __doc__, _add_options, _run, arguments, must=ROOM)


def _run(options: argparse.Namespace) -> None:
    splits = by_speaker(read_manifest(options.manifest), options.fraction, options.seed)
    claim(options.output_dir, "recipes.finetune.split", [f"{name}.jsonl" for name in splits])
    for name, utterances in splits.items():
        write_manifest(options.output_dir / f"{name}.jsonl", utterances)
    for name, utterances in splits.items():
        minutes = sum(utterance.duration for utterance in utterances) / 60
        speakers = len({utterance.speaker for utterance in utterances})
        print(f"{name}.jsonl: {len(utterances)} utterances, {minutes:.1f} minutes, {speakers} speakers")


def by_speaker(utterances: Sequence[Utterance], fraction: float, seed: int) -> Splits:
    """Split utterances by their speakers.

    Args:
        utterances: each with its speaker.
        fraction: fraction of the speakers that are used for validation; each split gets at least one speaker.
        seed: seed of the random choice of speakers.

    Raises:
        InputError: an utterance has no speaker, or there is only one speaker.
    """
    if not 0 < fraction < 1:
        raise InputError(f"--fraction must be more than 0 and less than 1; got {fraction}.")
    for utterance in utterances:
        if utterance.speaker is None:
            raise InputError(f"each utterance must name its speaker; {utterance.id} does not.")
    speakers = sorted({utterance.speaker for utterance in utterances if utterance.speaker is not None})
    if len(speakers) < 2:
        raise InputError(f"there must be at least two speakers, one for each split; got {len(speakers)}.")
    number = min(max(1, round(fraction * len(speakers))), len(speakers) - 1)
    valid = set(random.Random(seed).sample(speakers, number))
    return {
        "train": [utterance for utterance in utterances if utterance.speaker not in valid],
        "valid": [utterance for utterance in utterances if utterance.speaker in valid],
    }


def _add_options(add: AddOption) -> None:
    add("manifest", type=Path, metavar="MANIFEST", help="JSONL, with the speaker of each utterance")
    add("--output-dir", type=Path, required=True, metavar="DIR", help="for train.jsonl and valid.jsonl")
    add("--fraction", type=float, default=0.1, metavar="F", help="share of speakers for validation (0.1)")
    add("--seed", type=int, default=0, metavar="N", help="seed of the choice (0)")


if __name__ == "__main__":
    sys.exit(main())
