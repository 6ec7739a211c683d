"""What a transducer's prediction network makes of the prefixes of a beam."""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor

from asr.decode.prefixes import Prefix
from asr.interfaces import BLANK_ID, JointNetwork, Predictor


class PrefixReader:
    """What the joiner takes of each prefix of a beam, and the state of the prediction network after it.

    Args:
        predictor: prediction network.
        joiner: joint network.
        empty: the prefix without tokens.
    """

    def __init__(self, predictor: Predictor, joiner: JointNetwork, empty: Prefix) -> None:
        self._predictor = predictor
        self._joiner = joiner
        begun = predictor.initial_state(1)
        out, state = predictor.step(torch.full((1,), BLANK_ID, device=begun.device), begun)
        self._read = {empty: (joiner.of_tokens(out)[0], state[0])}

    def __call__(self, prefixes: Iterable[Prefix]) -> Tensor:
        """N prefixes, the new ones longer by a token than some that were read, to (N, J)."""
        prefixes = list(prefixes)
        new = [prefix for prefix in prefixes if prefix not in self._read]
        if new:
            before = torch.stack([self._read[cast(Prefix, prefix.before())][1] for prefix in new])
            tokens = torch.tensor([prefix.token for prefix in new], device=before.device)
            out, states = self._predictor.step(tokens, before)
            self._read.update(zip(new, zip(self._joiner.of_tokens(out), states, strict=True), strict=True))
        return torch.stack([self._read[prefix][0] for prefix in prefixes])

    def forget_all_but(self, prefixes: Iterable[Prefix]) -> None:
        """Keep what is needed to read these and the prefixes that grow from them."""
        needed = (prefix if prefix in self._read else cast(Prefix, prefix.before()) for prefix in prefixes)
        self._read = {prefix: self._read[prefix] for prefix in needed}
