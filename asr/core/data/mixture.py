"""Mixtures of manifests: the number of occurrences of each utterance in an epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from asr.base.system.seeds import derive_seed


def repeats(hours: Sequence[float], weights: Sequence[float], temperature: float) -> list[float]:
    """Return the mean number of occurrences of an utterance in an epoch, for each manifest.

    A manifest's share of the hours of an epoch is (hours * weight) ** temperature, normalised over the manifests, as in
    NeMo. The length of an epoch does not depend on the temperature; at temperature 1 an utterance occurs `weight`
    times. A manifest without utterances has no share.

    Args:
        hours: hours of each manifest.
        weights: weight of each manifest, > 0.
        temperature: at 1, shares are proportional to hours * weight; at 0, all manifests have equal shares.
    """
    weighted = [hour * weight for hour, weight in zip(hours, weights, strict=True)]
    powers = [share**temperature if share else 0.0 for share in weighted]
    if temperature == 1 or not any(powers):
        return list(weights)
    scale = sum(weighted) / sum(powers)
    return [
        power * scale / hour if hour else weight for weight, power, hour in zip(weights, powers, hours, strict=True)
    ]


class Occurrences(NamedTuple):
    """The utterances of an epoch; both fields are (M,) integers.

    Args:
        rows: positions of the utterances in the training set, ascending.
        repeats: number of earlier occurrences of the utterance in this epoch.
    """

    rows: Tensor
    repeats: Tensor

    def __len__(self) -> int:
        return len(self.rows)


def each_once(number: int) -> Occurrences:
    """Return the occurrences of an epoch in which each utterance occurs once."""
    return Occurrences(torch.arange(number, dtype=torch.int32), torch.zeros(1, dtype=torch.int32).expand(number))


@dataclass(frozen=True)
class Mixture:
    """The manifests of a training set.

    Args:
        sizes: number of utterances of each manifest, in the order of the training set.
        repeats: mean number of occurrences of an utterance in an epoch, for each manifest.
    """

    sizes: tuple[int, ...]
    repeats: tuple[float, ...]

    def __len__(self) -> int:
        """Return the number of occurrences in an epoch, which is constant."""
        return sum(self._whole_and_drawn(size, mean)[2] for size, mean in zip(self.sizes, self.repeats, strict=True))

    @property
    def is_plain(self) -> bool:
        """Return whether each utterance occurs once in each epoch."""
        return all(mean == 1 for mean in self.repeats)

    def occurrences(self, seed: int, epoch: int) -> Occurrences:
        """Draw the utterances of an epoch: each occurs floor(`repeats`) times, and a random selection once more.

        Args:
            seed: the run's seed.
            epoch: number of the epoch, from 0.
        """
        if self.is_plain:
            return each_once(sum(self.sizes))
        counts = []
        for number, (size, mean) in enumerate(zip(self.sizes, self.repeats, strict=True)):
            whole, drawn, _ = self._whole_and_drawn(size, mean)
            generator = torch.Generator().manual_seed(derive_seed(seed, epoch, "mixture", number))
            count = torch.full((size,), whole)
            count[torch.randperm(size, generator=generator)[:drawn]] += 1
            counts.append(count)
        count = torch.cat(counts)
        rows = torch.arange(len(count)).repeat_interleave(count)
        first = (count.cumsum(0) - count)[rows]
        return Occurrences(rows, torch.arange(len(rows)) - first)

    @staticmethod
    def _whole_and_drawn(size: int, mean: float) -> tuple[int, int, int]:
        """Return how often every utterance occurs, how many utterances occur once more, and the total."""
        whole = int(mean)
        drawn = round((mean - whole) * size)
        return whole, drawn, whole * size + drawn
