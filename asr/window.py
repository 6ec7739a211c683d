"""What one process has computed between two optimizer steps."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from asr.data.batch import Batch, Rejected
from asr.files import write_whole


@dataclass
class Window:
    """The batches of one accumulation window, the losses of their utterances, and what could not be read."""

    batches: list[tuple[Batch, Tensor]] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    seconds: Tensor | float = 0.0

    def add(self, batch: Batch, losses: Tensor, frame_shift_seconds: float) -> None:
        """Add a batch and the losses of its utterances, (B,)."""
        self.batches.append((batch, losses))
        self.rejected += batch.rejected
        self.seconds = self.seconds + batch.feature_lengths.sum() * frame_shift_seconds

    def sums(self) -> Tensor:
        """Sum loss, tokens, seconds of audio, utterances skipped, (4,)."""
        loss = torch.stack([losses.double().sum() for _, losses in self.batches]).sum()
        tokens = torch.stack([batch.token_lengths.sum() for batch, _ in self.batches]).sum()
        skipped = torch.tensor(float(len(self.rejected)), dtype=torch.float64, device=loss.device)
        return torch.stack([loss, tokens.double(), torch.as_tensor(self.seconds).double(), skipped])

    def not_finite(self) -> list[str]:
        """List the utterances whose loss is not finite."""
        # A stand-in for a batch without utterances has a loss all the same.
        pairs = [
            pair for batch, losses in self.batches for pair in zip(batch.utterances, losses.tolist(), strict=False)
        ]
        return [utterance.id for utterance, loss in pairs if not abs(loss) < float("inf")]

    def keep(self, folder: Path, name: str) -> None:
        """Write down the batches in which a loss is not finite; all of them where each one is."""
        guilty = [pair for pair in self.batches if not bool(pair[1].isfinite().all())]
        folder.mkdir(parents=True, exist_ok=True)
        for number, (batch, losses) in enumerate(guilty or self.batches):
            kept = {
                "ids": [utterance.id for utterance in batch.utterances],
                "features": batch.features.cpu(),
                "feature_lengths": batch.feature_lengths.cpu(),
                "tokens": batch.tokens.cpu(),
                "token_lengths": batch.token_lengths.cpu(),
                "losses": losses.cpu(),
            }
            write_whole(folder / f"{name}-{number}.pt", lambda file, kept=kept: torch.save(kept, file))  # type: ignore[misc]
