"""Batches, losses and sums of an optimizer step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asr.base.kernels.choice import exact
from asr.base.system.files import write_whole
from asr.core.training.losses import Losses
from asr.core.training.objective import TrainedBatch


class StepSums(NamedTuple):
    """Sums over the batches of an optimizer step, on all ranks.

    Args:
        loss: sum of the examples' losses.
        units: number of units of the examples, such as tokens of the references.
        size: number of elements without padding, such as feature frames.
        padded_size: number of elements, including padding.
        skipped: number of unreadable utterances.
        waited_seconds: seconds during which ranks waited for batches, summed over the ranks.
        wall_seconds: seconds since the previous step, summed over the ranks.
        others: losses that are logged but not trained, by name.
    """

    loss: float
    units: float
    size: float
    padded_size: float
    skipped: float
    waited_seconds: float
    wall_seconds: float
    others: Mapping[str, float]

    @classmethod
    def of(cls, sums: Sequence[float], names: Sequence[str]) -> "StepSums":
        """Convert the values of `StepBatches.sums`, with the names of the other losses."""
        fixed = len(cls._fields) - 1
        others = dict(zip(names, sums[fixed:], strict=True))
        return cls(**dict(zip(cls._fields, sums[:fixed], strict=False)), others=others)

    def together(self, others: Sequence["StepSums"]) -> "StepSums":
        """Add other steps' sizes and seconds to this step's, so that rates cover the time since the last log line."""
        steps = [self, *others]
        shared = ("size", "padded_size", "waited_seconds", "wall_seconds")
        return self._replace(**{name: sum(getattr(step, name) for step in steps) for name in shared})

    @property
    def padding(self) -> float:
        """Padding, as a fraction of the elements."""
        return 1 - self.size / self.padded_size if self.padded_size else 0.0

    @property
    def data_wait(self) -> float:
        """Fraction of the time during which ranks waited for batches."""
        return self.waited_seconds / self.wall_seconds if self.wall_seconds else 0.0


class SettledBatch(NamedTuple):
    """A batch and its losses, detached from the graph."""

    batch: TrainedBatch
    losses: Losses


@dataclass
class StepBatches:
    """Batches of an optimizer step on this rank, losses of their examples, and unreadable utterances."""

    batches: list[SettledBatch] = field(default_factory=list)
    rejected: list[Any] = field(default_factory=list)

    def add(self, batch: TrainedBatch, losses: Losses) -> None:
        """Add a batch and its losses."""
        detached = {name: loss.detach() for name, loss in losses.by_name.items()}
        self.batches.append(SettledBatch(batch, losses._replace(by_name=detached)))
        self.rejected += batch.rejected

    def sums(self, waited_seconds: float, wall_seconds: float, names: Sequence[str] = ()) -> Tensor:
        """Return the fields of `StepSums`, in order, followed by the sums of the N losses with these names, (7 + N,).

        The result stays on the device; there is no synchronisation.
        """
        dtype = exact(self.batches[0].losses.loss.device)
        loss = torch.stack([losses.loss.sum(dtype=dtype) for _, losses in self.batches]).sum()
        units = torch.stack([losses.units.sum() for _, losses in self.batches]).sum()
        size = torch.stack([batch.sizes.sum() for batch, _ in self.batches]).sum()
        padded_size = sum(batch.padded_size for batch, _ in self.batches)
        known = (float(padded_size), float(len(self.rejected)), waited_seconds, wall_seconds)
        # new_full does not synchronise with the device; a copy from the CPU would.
        filled = [loss.new_full((), number) for number in known]
        none = loss.new_zeros(1)  # loss of a batch without examples
        others = [
            torch.stack([losses.by_name.get(name, none).sum(dtype=dtype) for _, losses in self.batches]).sum()
            for name in names
        ]
        return torch.stack([loss, units.to(dtype), size.to(dtype), *filled, *others])

    def not_finite(self) -> list[str]:
        """Return the examples whose loss is not finite."""
        # strict=False: a batch without examples has one loss.
        pairs = [pair for batch, losses in self.batches for pair in zip(batch.ids, losses.loss.tolist(), strict=False)]
        return [name for name, loss in pairs if not abs(loss) < float("inf")]

    def keep(self, folder: Path, name: str) -> None:
        """Save the batches with a loss that is not finite; if there are none, save all batches."""
        not_finite = [settled for settled in self.batches if not bool(settled.losses.loss.isfinite().all())]
        folder.mkdir(parents=True, exist_ok=True)
        for number, (batch, losses) in enumerate(not_finite or self.batches):
            contents = {"ids": list(batch.ids), **batch.to("cpu").contents, "losses": losses.loss.cpu()}
            write_whole(folder / f"{name}-{number}.pt", lambda file, contents=contents: torch.save(contents, file))  # type: ignore[misc]


@dataclass(frozen=True)
class StepRecord:
    """An optimizer step that the device may not have finished yet.

    Args:
        epoch: number of the epoch, from 1.
        number: number of the step, from 1.
        batches: batches of this rank.
        sums: the result of `StepBatches.sums`, summed over all ranks, on the device, (7 + N,).
        norm: norm of the gradient, on the device, ().
    """

    epoch: int
    number: int
    batches: StepBatches
    sums: Tensor
    norm: Tensor


def wait_for(steps: Sequence[StepRecord], names: Sequence[str]) -> list[tuple[StepSums, float]]:
    """Read sums and gradient norms of steps with a single synchronisation; `names` names the other losses."""
    rows = torch.stack([torch.cat([step.sums, step.norm.to(step.sums.dtype)[None]]) for step in steps]).tolist()
    return [(StepSums.of(sums, names), norm) for *sums, norm in rows]
