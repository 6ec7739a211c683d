"""python -m tests.bundles.make FOLDER [BASE]: with this version of asr, make a small bundle and compute its log_probs.

A bundle of each format is stored in the folder of this file. tests/test_bundle_formats.py checks that every later
version loads them.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr import load_recognizer
from asr.core.data.manifest import Utterance
from asr.core.run.initialization import with_parts
from asr.train import train
from tests.conftest import TINY, settings_with, tone_corpus
from tests.tones import sentences, write_corpus

SMALLEST = [
    *("encoder.dim=8", "encoder.num_layers=1", "encoder.block.num_heads=2", "encoder.block.convolution.kernel_size=3"),
    *("encoder.subsampling.num_channels=2", "head=ctc", "normalizer=as_written", "trainer.max_steps=3"),
]


def in_format_11(encoder: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a Conformer or Transformer as format 11 has them: with those of its blocks."""
    block = {key: value for key, value in encoder["block"].items() if key != "name"}
    return {key: value for key, value in (encoder | block).items() if key not in ("block", "last_norm")}


SOUND = Utterance("sound", 0.5, "", "")


def sound() -> Tensor:
    """Return half a second of two tones, (S,)."""
    time = torch.arange(8000) / 16000
    return 0.1 * (torch.sin(2 * torch.pi * 440 * time) + torch.sin(2 * torch.pi * 1700 * time * time))


def log_probs(bundle: Path, base: Path | None = None) -> Tensor:
    """Return a bundle's log_probs (T', V) for `sound()`."""
    recognizer = load_recognizer(bundle, base=base)
    [(_, segments)] = recognizer.segments([SOUND], waveforms={"": sound()})  # type: ignore[misc]
    return torch.cat([recognizer.log_probs(encoder_out) for _, encoder_out in segments])


def make(folder: Path, base: Path | None = None) -> None:
    """Train for three steps on tones, and store the bundle and its log_probs. With a base, train an adapter.

    The bundle is written to `folder`, and the log_probs to a file beside it, whose name is that of `folder` plus .json.
    """
    with tempfile.TemporaryDirectory() as place:
        corpus = Path(place, "tones")
        corpus.mkdir()
        write_corpus(corpus, {name: sentences(16, seed) for seed, name in enumerate(("train", "valid", "test"))})
        given = [*TINY, *SMALLEST, *tone_corpus(corpus), f"run_dir={place}/run"]
        if base is not None:
            given += [
                f"init.from={base}",
                "adapter=lora",
                "adapter.rank=1",
                "optimizer.lr=0.3",
                "schedule.warmup_steps=0",
            ]
        train(with_parts(settings_with(*given), given))
        folder.mkdir(parents=True)
        for path in Path(place, "run", "bundle").iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
    expected = [[round(float(value), 5) for value in row] for row in log_probs(folder, base)]
    folder.with_suffix(".json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    make(*map(Path, sys.argv[1:]))
