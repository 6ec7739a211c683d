"""What augmentations draw from torch's CPU generator, which whoever calls them has seeded."""

from collections.abc import Sequence

import torch


def happens(probability: float) -> bool:
    """Draw whether something of this probability happens: never at 0, always at 1."""
    return bool(torch.rand(()) < probability)


def uniform(span: Sequence[float]) -> float:
    """Draw a number between two."""
    low, high = span
    return low + (high - low) * float(torch.rand((), dtype=torch.float64))


def below(number: int) -> int:
    """Draw a whole number from 0 to below `number`."""
    return int(torch.randint(number, ()))
