"""Random draws of augmentations, from torch's CPU generator, which the caller seeds."""

from collections.abc import Sequence

import torch


def happens(probability: float) -> bool:
    """Return True with this probability: never at 0, always at 1."""
    return bool(torch.rand(()) < probability)


def uniform(span: Sequence[float]) -> float:
    """Draw a number from a range (low, high)."""
    low, high = span
    return low + (high - low) * float(torch.rand((), dtype=torch.float64))


def below(number: int) -> int:
    """Draw a whole number from 0 to `number` - 1."""
    return int(torch.randint(number, ()))
