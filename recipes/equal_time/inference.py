"""python -m recipes.equal_time.inference RUN: seconds of audio recognised in a second of the processor, on one thread.

The audio is the run's first test manifest; reading, features and decoding are included, loading the model is not.
"""

import sys
import time
from pathlib import Path

import torch
import yaml

from asr.checkpoint.load import load_recognizer
from asr.data.manifest import read_manifest
from asr.run.names import CONFIG

WARM_UP_UTTERANCES = 8


def main(run_dir: Path) -> None:
    """Recognise the test manifest, and print the rate."""
    torch.set_num_threads(1)
    corpus = yaml.safe_load((run_dir / CONFIG).read_text(encoding="utf-8"))["corpus"]
    utterances = read_manifest(Path(corpus["dir"], corpus["test"][0]))
    recognizer = load_recognizer(run_dir)
    for _ in recognizer.recognize(utterances[:WARM_UP_UTTERANCES]):
        pass
    begun = time.process_time()
    for _ in recognizer.recognize(utterances):
        pass
    print(sum(utterance.duration for utterance in utterances) / (time.process_time() - begun))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
