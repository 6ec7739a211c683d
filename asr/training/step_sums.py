"""Batches, losses and sums of an optimizer step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from asr.data.batch import Batch, Rejected
from asr.kernels.choice import exact
from asr.system.files import write_whole


class StepSums(NamedTuple):
    """Sums over the batches of an optimizer step, on all ranks.

    Args:
        loss: sum of the utterances' losses.
        tokens: number of tokens of the references.
        frames: number of feature frames, without padding.
        padded_frames: number of feature frames, including padding.
        skipped: number of unreadable utterances.
        waited_seconds: seconds during which ranks waited for batches, summed over the ranks.
        wall_seconds: seconds since the previous step, summed over the ranks.
        others: losses that are logged but not trained, by name.
    """

    loss: float
    tokens: float
    frames: float
    padded_frames: float
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
        """Add other steps' frames and seconds to this step's, so that rates cover the time since the last log line."""
        steps = [self, *others]
        shared = ("frames", "padded_frames", "waited_seconds", "wall_seconds")
        return self._replace(**{name: sum(getattr(step, name) for step in steps) for name in shared})

    @property
    def padding(self) -> float:
        """Padding, as a fraction of the frames."""
        return 1 - self.frames / self.padded_frames if self.padded_frames else 0.0

    @property
    def data_wait(self) -> float:
        """Fraction of the time during which ranks waited for batches."""
        return self.waited_seconds / self.wall_seconds if self.wall_seconds else 0.0


def on_device(sums: Sequence[float], device: torch.device) -> Tensor:
    """Copy numbers, which will be summed over ranks, to the device in the most precise type that it supports."""
    return torch.tensor(sums, dtype=exact(device), device=device)


@dataclass
class StepBatches:
    """Batches of an optimizer step on this rank, losses of their utterances, and unreadable utterances."""

    batches: list[tuple[Batch, Tensor]] = field(default_factory=list)
    others: list[Mapping[str, Tensor]] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)

    def add(self, batch: Batch, losses: Mapping[str, Tensor]) -> None:
        """Add a batch and the losses of its utterances, (B,) each."""
        self.batches.append((batch, losses["loss"]))
        self.others.append(losses)
        self.rejected += batch.rejected

    def sums(self, waited_seconds: float, wall_seconds: float, names: Sequence[str] = ()) -> Tensor:
        """Return the fields of `StepSums`, in order, followed by the sums of the N losses with these names, (7 + N,).

        The result stays on the device; there is no synchronisation.
        """
        dtype = exact(self.batches[0][1].device)
        loss = torch.stack([losses.sum(dtype=dtype) for _, losses in self.batches]).sum()
        tokens = torch.stack([batch.token_lengths.sum() for batch, _ in self.batches]).sum()
        frames = torch.stack([batch.feature_lengths.sum() for batch, _ in self.batches]).sum()
        padded_frames = sum(batch.features.shape[0] * batch.features.shape[1] for batch, _ in self.batches)
        known = (float(padded_frames), float(len(self.rejected)), waited_seconds, wall_seconds)
        # new_full does not synchronise with the device; a copy from the CPU would.
        filled = [loss.new_full((), number) for number in known]
        none = loss.new_zeros(1)  # loss of a batch without utterances
        others = [torch.stack([loss.get(name, none).sum(dtype=dtype) for loss in self.others]).sum() for name in names]
        return torch.stack([loss, tokens.to(dtype), frames.to(dtype), *filled, *others])

    def not_finite(self) -> list[str]:
        """Return the utterances whose loss is not finite."""
        # strict=False: a batch without utterances has one loss.
        pairs = [
            pair for batch, losses in self.batches for pair in zip(batch.utterances, losses.tolist(), strict=False)
        ]
        return [utterance.id for utterance, loss in pairs if not abs(loss) < float("inf")]

    def keep(self, folder: Path, name: str) -> None:
        """Save the batches with a loss that is not finite; if there are none, save all batches."""
        not_finite = [pair for pair in self.batches if not bool(pair[1].isfinite().all())]
        folder.mkdir(parents=True, exist_ok=True)
        for number, (batch, losses) in enumerate(not_finite or self.batches):
            on_cpu = batch.to("cpu")
            contents = {
                "ids": [utterance.id for utterance in batch.utterances],
                "features": on_cpu.features,
                "feature_lengths": on_cpu.feature_lengths,
                **on_cpu.targets,
                "conditions": on_cpu.conditions,
                "losses": losses.cpu(),
            }
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
