"""Sums over the optimizer steps between two lines of the log."""

from dataclasses import dataclass


@dataclass
class LineSums:
    """Sums over the optimizer steps since the last line of the log, over all ranks.

    Args:
        loss: sum of the losses.
        tokens: number of tokens to which the losses belong.
        steps: number of steps.
        clipped: number of steps whose gradient was clipped.
    """

    loss: float = 0.0
    tokens: float = 0.0
    steps: int = 0
    clipped: int = 0

    def add(self, loss: float, tokens: float, norm: float, max_norm: float | None) -> None:
        """Add a step.

        Args:
            loss: sum of the losses.
            tokens: number of tokens.
            norm: norm of the gradient before clipping.
            max_norm: maximum norm; None: no limit.
        """
        self.loss, self.tokens, self.steps = self.loss + loss, self.tokens + tokens, self.steps + 1
        self.clipped += bool(max_norm) and norm > (max_norm or 0.0)

    @property
    def mean_loss(self) -> float:
        """Loss per token."""
        return self.loss / max(1.0, self.tokens)

    @property
    def clipped_share(self) -> float:
        """Fraction of the steps whose gradient was clipped."""
        return self.clipped / self.steps if self.steps else 0.0
