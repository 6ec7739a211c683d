"""The plan of an epoch: its batches, how large they are, and each rank's share of them."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from torch.utils.data import Sampler

from asr.data.batch_plan import Plan, Texts
from asr.data.dataset import Item


@dataclass(frozen=True)
class BatchSize:
    """How much a batch holds: its longest utterance times their number, and their number."""

    padded_seconds: float
    utterances: int


@dataclass(frozen=True)
class PlanSummary:
    """A plan in numbers.

    Args:
        steps: batches of each rank.
        batches: of all ranks.
        utterances: in them.
        hours: of audio, at the speeds at which it is played.
        padding: part of the padded seconds that is no audio.
        shortest: the batch of fewest padded seconds.
        longest: the batch of most padded seconds.
    """

    steps: int
    batches: int
    utterances: int
    hours: float
    padding: float
    shortest: BatchSize
    longest: BatchSize


@dataclass(frozen=True)
class EpochPlan:
    """The batches of one epoch, or of the rest of one; `len()` is the number of steps, each rank's batches.

    Args:
        epoch: from 0.
        plan: which utterances are in which batch.
        durations: seconds of every utterance of the training set at its factor, at most, (N,) float64.
        padded: seconds to which each is padded as the longest of its batch, (N,) float64.
        factors: of speed, (N,) float64.
        kept_speed: utterances of the epoch that keep speed 1.0, since at the factor drawn their frames would be too
            few or their batch too long.
        texts: of every utterance; None: they add nothing to the size of a batch.
    """

    epoch: int
    plan: Plan
    durations: Tensor
    padded: Tensor
    factors: Tensor
    kept_speed: int
    texts: Texts | None = None

    def __len__(self) -> int:
        return len(self.plan)

    def items(self, step: int, rank: int) -> list[Item]:
        """Return the utterances of one batch."""
        indices = self.plan.batch(step, rank)
        factors = self.factors[indices].tolist()
        return [Item(self.epoch, index, factor) for index, factor in zip(indices, factors, strict=True)]

    def largest(self) -> list[int]:
        """Return the steps with the batch of most padded seconds, of most seconds squared, and of most cells."""
        longest, sizes = self.plan.longest(self.padded), self.plan.sizes()
        measures = [longest, longest * longest]
        if self.texts is not None:
            measures.append(self.texts.cells(longest, self.plan.longest(self.texts.num_tokens)))
        most = [int((measure * sizes).amax(dim=1).argmax()) for measure in measures]
        return sorted(set(most))

    def summary(self) -> PlanSummary:
        """Count and measure the batches of all ranks."""
        longest, sizes = self.plan.longest(self.padded).flatten(), self.plan.sizes().flatten()
        padded = longest * sizes
        seconds = float(self.durations[self.plan.order].sum())
        least, most = int(padded.argmin()), int(padded.argmax())
        return PlanSummary(
            steps=len(self),
            batches=len(sizes),
            utterances=len(self.plan.order),
            hours=seconds / 3600,
            padding=1 - seconds / float(padded.sum()),
            shortest=BatchSize(float(padded[least]), int(sizes[least])),
            longest=BatchSize(float(padded[most]), int(sizes[most])),
        )


class EpochSampler(Sampler[list[Item]]):
    """Hand one rank's batches to a DataLoader, from batch `start` on; `len()` counts those before it too."""

    def __init__(self, epoch: EpochPlan, rank: int, start: int = 0) -> None:
        self.epoch = epoch
        self.rank = rank
        self.start = start

    def __len__(self) -> int:
        return len(self.epoch)

    def __iter__(self) -> Iterator[list[Item]]:
        for step in range(self.start, len(self.epoch)):
            yield self.epoch.items(step, self.rank)
