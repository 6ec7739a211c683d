"""A head whose encoder_out are log_probs: what a decoder is tested with when no net is about."""

from typing import Any

from torch import Tensor

from asr.interfaces import Hypothesis


class Identity:
    """A frame head that does nothing."""

    def __init__(self) -> None:
        self.frame_head = self

    def log_probs(self, encoder_out: Tensor) -> Tensor:
        return encoder_out


IDENTITY: Any = Identity()


def decoded(decoder: Any, log_probs: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
    """Hypotheses of log_probs (B, T', V)."""
    hypotheses: list[list[Hypothesis]] = decoder.search(decoder.evidence(log_probs, lengths))
    return hypotheses
