"""A mask on tokens: searches give masked tokens no probability, so no decoder writes them."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from asr.errors import InputError
from asr.interfaces import BLANK_ID


class TokenMask(nn.Module):
    """The tokens that an output layer must not write; a new mask is empty. Checkpoints do not contain it."""

    masked: Tensor | None  # (V,); None: no token

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("masked", None, persistent=False)

    def restrict(self, allowed: Tensor) -> None:
        """Mask all tokens but those allowed, (V,); the blank must be allowed.

        Raises:
            InputError: the blank is not allowed.
        """
        if not allowed[BLANK_ID]:
            raise InputError("the tokens that a head may write must include the blank; they do not. Allow token 0.")
        self.masked = None if allowed.all() else ~allowed

    def logits(self, logits: Tensor) -> Tensor:
        """Mask logits (..., V), or (..., V + number of durations); the search normalises them."""
        if self.masked is None:
            return logits
        return logits.masked_fill(F.pad(self.masked, (0, logits.shape[-1] - len(self.masked))), -math.inf)

    def log_probs(self, log_probs: Tensor) -> Tensor:
        """Mask log_probs (..., V) and normalise them: those given that no masked token is written.

        A confidence is computed from a distribution, so that the probabilities must add up to 1.
        """
        return log_probs if self.masked is None else self.logits(log_probs).log_softmax(dim=-1)
