"""Outputs of a transducer in a search: the next token and duration, and what its prediction network has read."""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor

from asr.components.decode.prefixes import Prefix
from asr.interfaces import BLANK_ID, TransducerHead


def next_log_probs(head: TransducerHead, frames: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Join frames and the tokens before them; tokens and durations are normalised separately, in float32.

    Args:
        head: the head.
        frames: the joiner's input from frames, (..., J).
        tokens: the joiner's input from the tokens so far, (..., J).

    Returns:
        Log_probs of the next token, (..., V), and of its duration, (..., number of durations).
    """
    logits = head.joiner(frames, tokens)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    vocab_size = logits.shape[-1] - len(head.durations)
    return logits[..., :vocab_size].log_softmax(dim=-1), logits[..., vocab_size:].log_softmax(dim=-1)


class PrefixReader:
    """Compute the joiner's input for each prefix of a beam, and cache it with the prediction network's state.

    Args:
        head: the head.
        empty: the prefix without tokens.
    """

    def __init__(self, head: TransducerHead, empty: Prefix) -> None:
        self._predictor, self._joiner = head.predictor, head.joiner
        initial = head.predictor.initial_state(1)
        out, state = head.predictor.step(torch.full((1,), BLANK_ID, device=initial.device), initial)
        self._read = {empty: (head.joiner.of_tokens(out)[0], state[0])}

    def __call__(self, prefixes: Iterable[Prefix]) -> Tensor:
        """Return the joiner's inputs for N prefixes, (N, J); a new prefix must extend a cached one by a token."""
        prefixes = list(prefixes)
        new = [prefix for prefix in prefixes if prefix not in self._read]
        if new:
            before = torch.stack([self._read[cast(Prefix, prefix.before())][1] for prefix in new])
            tokens = torch.tensor([prefix.token for prefix in new], device=before.device)
            out, states = self._predictor.step(tokens, before)
            self._read.update(zip(new, zip(self._joiner.of_tokens(out), states, strict=True), strict=True))
        return torch.stack([self._read[prefix][0] for prefix in prefixes])

    def forget_all_but(self, prefixes: Iterable[Prefix]) -> None:
        """Drop cached outputs, except those needed for these prefixes and for prefixes that extend them."""
        needed = (prefix if prefix in self._read else cast(Prefix, prefix.before()) for prefix in prefixes)
        self._read = {prefix: self._read[prefix] for prefix in needed}
