"""The targets of a head."""

from torch import Tensor

from asr.interfaces import Targets


def targets_of(tokens: Tensor, token_lengths: Tensor) -> Targets:
    """Return the targets of a batch: tokens (B, U) and token_lengths (B,)."""
    return {"tokens": tokens, "token_lengths": token_lengths}
