"""How fast each run's model recognises, by turns: a machine that slows down slows all of them."""

import time
from collections.abc import Mapping
from pathlib import Path

import torch
import yaml

from asr.checkpoint.load import load_recognizer
from asr.data.manifest import Utterance, read_manifest
from asr.run.names import CONFIG

TURNS = 3
MAX_UTTERANCES = 100


def rates(runs: Mapping[str, Path]) -> dict[str, float]:
    """Seconds of audio that each run recognises in a second of the processor, on one thread.

    The audio is of its first test manifest; reading, features and decoding are included, loading the model is not.
    """
    torch.set_num_threads(1)
    recognizers = {name: load_recognizer(run) for name, run in runs.items()}
    utterances = {name: tested_on(run) for name, run in runs.items()}
    seconds = dict.fromkeys(runs, 0.0)
    for turn in range(1 + TURNS):  # the first warms up
        for name, recognizer in recognizers.items():
            begun = time.process_time()
            for _ in recognizer.recognize(utterances[name]):
                pass
            seconds[name] += (time.process_time() - begun) * (turn > 0)
    return {name: TURNS * sum(utterance.duration for utterance in utterances[name]) / seconds[name] for name in runs}


def tested_on(run: Path) -> list[Utterance]:
    """Read the first of the utterances that a run was tested on."""
    corpus = yaml.safe_load((run / CONFIG).read_text(encoding="utf-8"))["corpus"]
    return read_manifest(Path(corpus["dir"], corpus["test"][0]))[:MAX_UTTERANCES]
