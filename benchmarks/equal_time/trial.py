"""Measure the cost of an optimizer step of each configuration, which is a row of the table.

The configurations take turns, so that a change in machine speed affects all of them.
"""

import math
import time
from collections.abc import Iterator, Mapping
from itertools import cycle
from typing import Any, NamedTuple

import torch
from torch import nn

from asr.core import build
from asr.core.data.batch import collate
from asr.core.data.dataset import SpeechDataset
from asr.core.run.settings import RunSettings
from benchmarks.training_speech import training_speech

EPOCH = 1  # epoch 0 may be sorted by length, so that its first batches have the shortest utterances
WARM_UP_ROUNDS = 3
ROUNDS = 25


class Cost(NamedTuple):
    """Mean cost of an optimizer step.

    Args:
        seconds: CPU seconds, reading and augmentation included.
        audio: seconds of audio in the batch.
        parameters: number of parameters of the model.
    """

    seconds: float
    audio: float
    parameters: int


def costs(settings: Mapping[str, RunSettings]) -> dict[str, Cost]:
    """Time optimizer steps of all configurations on one thread, one step of each in turn; return the mean costs.

    Raises:
        InputError: a setting is invalid, or no utterance is left to train on.
    """
    torch.set_num_threads(1)
    rows = {name: _Row(row) for name, row in settings.items()}
    timed_steps: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
    for _ in range(WARM_UP_ROUNDS + ROUNDS):
        for name, row in rows.items():
            timed_steps[name].append(row.step())
    row_costs = {}
    for name, row in rows.items():
        seconds, audio = torch.tensor(timed_steps[name][WARM_UP_ROUNDS:]).mean(dim=0).tolist()
        row_costs[name] = Cost(seconds, audio, row.parameters)
    return row_costs


class _Row:
    """A model, its optimizer, and the batches of one training epoch, repeated without end."""

    def __init__(self, settings: RunSettings) -> None:
        torch.manual_seed(settings.seed)
        self._speech = training_speech(settings)
        self._model = self._speech.model.train()
        model = self._model
        self._optimizer = build.build_optimizer(settings.components, model, model.depths)
        training_set, augmentation = self._speech.training_set, self._speech.augmentation
        arguments = training_set.utterances, self._speech.features, self._model.reference, augmentation, settings.seed
        self._dataset = SpeechDataset(*arguments)
        self._batches: Iterator[list[Any]] = cycle(self._speech.batches(EPOCH))
        self._max_norm = settings.trainer.gradient_clip_val
        self.parameters = sum(parameter.numel() for parameter in self._model.parameters())

    def step(self) -> tuple[float, float]:
        """Take an optimizer step; return its CPU seconds and its seconds of audio."""
        items = next(self._batches)
        start = time.process_time()
        batch = collate([self._dataset[item] for item in items])
        encoded = self._model.encode(batch)
        self._model.head.losses(encoded, batch.targets)["loss"].mean().backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), self._max_norm or math.inf)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return time.process_time() - start, sum(self._dataset.utterances[item.row].duration for item in items)
