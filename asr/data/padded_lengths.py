"""To how many frames a training batch is padded, so that batches have few shapes."""

from dataclasses import dataclass
from typing import Annotated

import torch

from asr.lengths import Lengths
from asr.settings.read import check
from asr.settings.rule import Rule, is_whole, or_null

POWER_OF_TWO = Rule("a power of two, at most 64", lambda value: is_whole(value) and value in (1, 2, 4, 8, 16, 32, 64))


@dataclass(frozen=True)
class PaddedLengths:
    """The lengths that batches may have, evenly between each power of two and the next.

    What a GPU is told of a shape once, a recorded pass say, serves each batch of that shape. With their length the
    number of utterances is nearly settled, too: as many as `data.batch_seconds` holds.

    Args:
        lengths_per_doubling: how many there are from one length to its double, a power of two: 16 pad by some 2 %;
            None: a batch is as long as its longest utterance.

    Raises:
        InputError: it is another number.
    """

    lengths_per_doubling: Annotated[int | None, or_null(POWER_OF_TWO)]

    def __post_init__(self) -> None:
        check(self, "data")

    def of(self, frames: Lengths) -> Lengths:
        """Return the length to which so many frames, an int or a tensor of them, are padded: as many, or more."""
        if self.lengths_per_doubling is None:
            return frames
        if isinstance(frames, int):
            below = 1 << max(0, frames.bit_length() - 1)  # the power of two
            step = max(1, below // self.lengths_per_doubling)
        else:
            below = 1 << (torch.frexp(frames.clamp(min=1).double()).exponent.long() - 1)
            step = (below // self.lengths_per_doubling).clamp(min=1)
        return (frames + step - 1) // step * step


AS_LONG_AS_THE_LONGEST = PaddedLengths(None)
