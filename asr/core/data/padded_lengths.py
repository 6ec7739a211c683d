"""Padding of training batches to a small set of lengths, so that batches have few shapes."""

from dataclasses import dataclass
from typing import Annotated

import torch

from asr.base.settings.read import check
from asr.base.settings.rule import Rule, is_whole, or_null
from asr.lengths import Lengths

POWER_OF_TWO = Rule("a power of two, at most 64", lambda value: is_whole(value) and value in (1, 2, 4, 8, 16, 32, 64))


@dataclass(frozen=True)
class PaddedLengths:
    """The allowed lengths of batches, evenly spaced between neighbouring powers of two.

    Some work is done once per shape, such as a library's choice of algorithms. With few lengths, many batches share
    its result. The length of a batch almost determines its number of utterances, because `data.batch_seconds` limits
    the product of length and number.

    Args:
        lengths_per_doubling: number of allowed lengths between a length and its double, a power of two; 16 adds about
            2 % padding. None: a batch is as long as its longest utterance.

    Raises:
        InputError: the number is not a power of two from 1 to 64.
    """

    lengths_per_doubling: Annotated[int | None, or_null(POWER_OF_TWO)]

    def __post_init__(self) -> None:
        check(self, "data")

    def of(self, frames: Lengths) -> Lengths:
        """Round a number of frames (int or tensor) up to an allowed length."""
        if self.lengths_per_doubling is None:
            return frames
        if isinstance(frames, int):
            below = 1 << max(0, frames.bit_length() - 1)  # the largest power of two up to `frames`
            step = max(1, below // self.lengths_per_doubling)
        else:
            below = 1 << (torch.frexp(frames.clamp(min=1).double()).exponent.long() - 1)
            step = (below // self.lengths_per_doubling).clamp(min=1)
        return (frames + step - 1) // step * step


AS_LONG_AS_THE_LONGEST = PaddedLengths(None)
