"""Normalisation by the statistics of the training set."""

import logging
import math
from collections.abc import Iterable
from itertools import islice
from typing import Annotated

import torch
from torch import Tensor

from asr.base.settings.rule import Eps, whole
from asr.base.system.learnt import from_json, to_json
from asr.base.system.progress import ProgressLog
from asr.components.features.normalize.frame import Normalizer
from asr.errors import InputError

FILE = "feature_statistics.json"

logger = logging.getLogger(__name__)


class GlobalCMVN(Normalizer):
    """Shift and scale each bin by a fixed mean and standard deviation, which are measured on the training set.

    Args:
        num_utterances: number of random utterances on which the statistics are measured.
        min_std: lower bound of the standard deviation, for constant bins.
    """

    framewise = True
    mean: Tensor
    std: Tensor

    def __init__(self, *, num_utterances: Annotated[int, whole(1)], min_std: Eps) -> None:
        super().__init__()
        self.num_utterances = num_utterances
        self.min_std = min_std
        self.register_buffer("mean", torch.empty(0))
        self.register_buffer("std", torch.empty(0))

    def normalized(self, features: Tensor, valid: Tensor | None) -> Tensor:
        """Normalise features (..., T, F)."""
        return (features - self.mean) / self.std

    def fit(self, features: Iterable[Tensor]) -> None:
        """Measure mean and standard deviation over all frames of the first `num_utterances` utterances, (T, F) each."""
        count, total, squares = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        most = f"at most {self.num_utterances:,} utterances"
        progress = ProgressLog(logger, f"measured the features of %s of {most}")
        for number, frames in enumerate(islice(features, self.num_utterances), start=1):
            progress.update(number)
            count += len(frames)
            total = total + frames.double().sum(dim=0)
            squares = squares + frames.double().square().sum(dim=0)
        if count == 0:
            raise InputError("feature statistics need at least one frame of training audio; got none.")
        mean = total / count
        std = (squares / count - mean.square()).clamp(min=0).sqrt().clamp(min=self.min_std)
        self.mean, self.std = mean.float(), std.float()

    def files(self) -> dict[str, bytes]:
        """Return the statistics as the files that a bundle stores."""
        return to_json(FILE, {"mean": self.mean.tolist(), "std": self.std.tolist()})

    def load(self, files: dict[str, bytes]) -> None:
        """Restore the statistics from the output of `files`.

        Raises:
            InputError: a file is damaged.
        """
        statistics = from_json(files, FILE)
        try:
            self.mean, self.std = (_finite(statistics[name]) for name in ("mean", "std"))
        except (TypeError, KeyError, ValueError, OverflowError):
            raise InputError(f"{FILE} must hold a finite mean and std of each bin; it is damaged.") from None
        if self.mean.shape != self.std.shape or bool((self.std <= 0).any()):
            raise InputError(f"{FILE} must hold a mean and a positive std of each bin; it is damaged.")


def _finite(values: list[float]) -> Tensor:
    if not all(math.isfinite(value) for value in values):
        raise ValueError
    return torch.tensor(values, dtype=torch.float32)
