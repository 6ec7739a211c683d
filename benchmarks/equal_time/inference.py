"""Recognition speed of each run's model. The models take turns, so a change in machine speed affects all of them."""

import time
from collections.abc import Mapping
from pathlib import Path

import torch
import yaml

from asr.core.checkpoint.load import load_recognizer
from asr.core.data.manifest import Utterance, read_manifest
from asr.core.run.names import CONFIG

TURNS = 3
MAX_UTTERANCES = 100


def rates(runs: Mapping[str, Path]) -> dict[str, float]:
    """Return the seconds of audio that each run's model recognises per second of CPU time, on one thread.

    The audio is the run's first test manifest. Reading, features and decoding are included; loading the model is not.
    """
    torch.set_num_threads(1)
    recognizers = {name: load_recognizer(run) for name, run in runs.items()}
    utterances = {name: read_test_utterances(run) for name, run in runs.items()}
    seconds = dict.fromkeys(runs, 0.0)
    for turn in range(1 + TURNS):  # turn 0 is a warm-up
        for name, recognizer in recognizers.items():
            start = time.process_time()
            for _ in recognizer.recognize(utterances[name]):
                pass
            seconds[name] += (time.process_time() - start) * (turn > 0)
    return {name: TURNS * sum(utterance.duration for utterance in utterances[name]) / seconds[name] for name in runs}


def read_test_utterances(run: Path) -> list[Utterance]:
    """Read the first MAX_UTTERANCES utterances of a run's first test manifest."""
    corpus = yaml.safe_load((run / CONFIG).read_text(encoding="utf-8"))["corpus"]
    return read_manifest(Path(corpus["dir"], corpus["test"][0]))[:MAX_UTTERANCES]
