"""A head that returns encoder_out as log_probs, for tests of decoders without a network."""

from typing import Any

from torch import Tensor

from asr.interfaces import Encoded, Hypothesis


class Identity:
    """A frame head that returns its input."""

    def __init__(self) -> None:
        self.frame_head = self

    def log_probs(self, encoder_out: Tensor) -> Tensor:
        return encoder_out


IDENTITY: Any = Identity()


def decoded(decoder: Any, log_probs: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
    """Return a decoder's hypotheses for log_probs (B, T', V)."""
    hypotheses: list[list[Hypothesis]] = decoder.search(decoder.evidence(Encoded(log_probs, lengths, {})))
    return hypotheses
