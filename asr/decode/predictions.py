"""Outputs of a transducer's prediction network for the prefixes of a beam."""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor

from asr.decode.prefixes import Prefix
from asr.interfaces import BLANK_ID, JointNetwork, Predictor


class PrefixReader:
    """Compute the joiner's input for each prefix of a beam, and cache it with the prediction network's state.

    Args:
        predictor: prediction network.
        joiner: joint network.
        empty: the prefix without tokens.
    """

    def __init__(self, predictor: Predictor, joiner: JointNetwork, empty: Prefix) -> None:
        self._predictor = predictor
        self._joiner = joiner
        initial = predictor.initial_state(1)
        out, state = predictor.step(torch.full((1,), BLANK_ID, device=initial.device), initial)
        self._read = {empty: (joiner.of_tokens(out)[0], state[0])}

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
