"""A training in a process of its own: reads a recipe from the command line, and writes the result as JSON."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asr.base.system.files import write_whole_text
from asr.base.text.word_errors import total
from asr.core.evaluation.bootstrap import intervals
from benchmarks.time_to_wer.recipe import ASR, NEMO, Recipe
from benchmarks.time_to_wer.watch import Watch, scored
from benchmarks.training_speech import composed, training_speech


def run(recipe: Recipe, overrides: Sequence[str]) -> dict[str, Any]:
    """Train, evaluate on the first test manifest, and return the result.

    Args:
        recipe: the training.
        overrides: further overrides: corpus, epochs, seed, run folder.
    """
    torch.set_num_threads(1)
    settings = composed([*overrides, *recipe.overrides, "num_threads=1"])
    speech = training_speech(settings)
    watch = Watch(speech.corpus.valid)
    if recipe.toolkit == ASR:
        from benchmarks.time_to_wer import asr_training

        parameters, transcribe = asr_training.fit(settings, watch)
    else:
        from benchmarks.time_to_wer.peer import Job, shuffled

        if recipe.toolkit == NEMO and settings.init.source:
            from benchmarks.time_to_wer import nemo_finetuning as peer
        elif recipe.toolkit == NEMO:
            from benchmarks.time_to_wer import nemo_training as peer  # type: ignore[no-redef]
        else:
            from benchmarks.time_to_wer import parakeet_training as peer  # type: ignore[no-redef]
        num_epochs = settings.trainer.bounds.max_epochs or 1
        if recipe.is_published:
            batches = shuffled(speech, peer.PUBLISHED_BATCH, num_epochs, settings.seed)
        else:
            batches = [batch for epoch in range(num_epochs) for batch in speech.batches(epoch)]
        parameters, transcribe = peer.fit(Job(settings, speech, recipe.is_published, batches), watch)
    test = scored(next(iter(speech.corpus.tests.values())), transcribe)
    errors, words = (np.array([[getattr(each, name)] for each in test]) for name in ("errors", "reference_length"))
    return {
        "parameters": parameters,
        "start_seconds": watch.start_seconds,
        "points": watch.points,
        "test": total(test).rate,
        "interval": intervals(errors, words)[0],
    }


def main() -> None:
    """Run the recipe of the command line: JSON of the recipe and of the further overrides, and the result's path."""
    recipe, overrides, path = json.loads(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3])
    write_whole_text(path, json.dumps(run(Recipe(*recipe), overrides)) + "\n")


if __name__ == "__main__":
    main()
