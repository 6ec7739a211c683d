"""The batch plan: which utterances are padded together, and which rank trains on them, in what order.

A plan is a function of (durations, seed, epoch, world size) and of nothing else. Every rank computes the whole plan
and takes its share.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Sampler

from asr.data.dataset import Item
from asr.errors import InputError
from asr.seeds import derive_seed


@dataclass(frozen=True)
class BatchBounds:
    """What a batch may hold.

    Args:
        batch_seconds: longest utterance times number of utterances, at most.
        max_utterances: number of utterances, at most.
    """

    batch_seconds: float
    max_utterances: int

    def __post_init__(self) -> None:
        if self.batch_seconds <= 0 or self.max_utterances < 1:
            given = f"got batch_seconds={self.batch_seconds}, max_utterances={self.max_utterances}"
            raise InputError(f"data.batch_seconds must be positive and data.max_utterances at least 1; {given}.")


def cut_batches(order: Sequence[int], durations: Sequence[float], bounds: BatchBounds) -> list[list[int]]:
    """Cut utterances, in the given order, into batches that keep the bounds.

    An utterance that is longer than `batch_seconds` is a batch of its own.
    """
    batches: list[list[int]] = []
    batch: list[int] = []
    longest = 0.0
    for index in order:
        longest = max(longest, durations[index])
        full = len(batch) == bounds.max_utterances or longest * (len(batch) + 1) > bounds.batch_seconds
        if batch and full:
            batches.append(batch)
            batch, longest = [], durations[index]
        batch.append(index)
    if batch:
        batches.append(batch)
    return batches


def plan_training(
    durations: Tensor, bounds: BatchBounds, *, jitter: float, seed: int, epoch: int, world_size: int
) -> list[list[list[int]]]:
    """Plan one epoch: every utterance once, in steps of `world_size` batches of similar length.

    Utterances are sorted by duration times a random factor, so that mates change from epoch to epoch, cut into
    batches, and neighbouring batches go to the ranks side by side; the steps are shuffled.

    Args:
        durations: seconds, (N,), with the epoch's speed factors in them.
        bounds: of each batch.
        jitter: standard deviation of the logarithm of that random factor.
        seed: of the run.
        epoch: from 0.
        world_size: number of ranks.

    Returns:
        [step][rank] to a list of indices.
    """
    if len(durations) < world_size:
        raise InputError(f"each rank needs an utterance; got {len(durations)} utterances for {world_size} ranks.")
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch, "plan"))
    noise = torch.randn(len(durations), generator=generator, dtype=torch.float64) * jitter
    order = torch.argsort(durations * noise.exp(), stable=True)
    batches = cut_batches(order.tolist(), durations.tolist(), bounds)
    _split_until_divisible(batches, world_size)
    steps = [batches[start : start + world_size] for start in range(0, len(batches), world_size)]
    return [steps[step] for step in torch.randperm(len(steps), generator=generator).tolist()]


def _split_until_divisible(batches: list[list[int]], divisor: int) -> None:
    """Halve the batches of most utterances, in place, until their number is a multiple of `divisor`."""
    while len(batches) % divisor:
        fullest = max(range(len(batches)), key=lambda number: len(batches[number]))
        batch = batches[fullest]
        if len(batch) == 1:
            must = "batches must be as many as ranks, or some multiple, and hold an utterance each"
            raise InputError(f"{must}; got {len(batches)} batches of one utterance for {divisor} ranks.")
        batches[fullest : fullest + 1] = [batch[: len(batch) // 2], batch[len(batch) // 2 :]]


def draw_factors(factors: Sequence[float], feasible: Tensor, *, seed: int, epoch: int) -> tuple[Tensor, int]:
    """Draw each utterance's speed factor for one epoch.

    Args:
        factors: K speeds to draw from.
        feasible: (N, K) bool: whether the tokens still fit the frames at that speed; else the utterance keeps 1.0.
        seed: of the run.
        epoch: from 0.

    Returns:
        Factors (N,) float64, and how many utterances kept 1.0 because what was drawn did not fit.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch, "speed"))
    drawn = torch.randint(len(factors), (len(feasible), 1), generator=generator)
    fits = feasible.gather(1, drawn)[:, 0]
    return torch.tensor(factors, dtype=torch.float64)[drawn[:, 0]].where(fits, torch.ones(())), int((~fits).sum())


class BatchSampler(Sampler[list[Item]]):
    """Hand a plan's batches, as items, to a DataLoader."""

    def __init__(self, batches: Sequence[Sequence[int]], *, epoch: int = 0, factors: Tensor | None = None) -> None:
        self.batches = batches
        self.epoch = epoch
        self.factors = factors

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Item]]:
        for batch in self.batches:
            yield [Item(self.epoch, position, self._factor(position)) for position in batch]

    def _factor(self, position: int) -> float:
        return 1.0 if self.factors is None else float(self.factors[position])


def plan_evaluation(durations: Sequence[float], bounds: BatchBounds, *, rank: int, world_size: int) -> list[list[int]]:
    """Plan one rank's share of a pass that sees every utterance exactly once over all ranks, longest first.

    Longest first, so that what does not fit into memory fails at once.
    """
    order = sorted(range(len(durations)), key=lambda index: -durations[index])
    batches = cut_batches(order, durations, bounds)
    batches += [[] for _ in range(world_size - len(batches))]  # a rank without a loader would not wait for the others
    return batches[rank::world_size]
