"""Parts shared by beam searches of transducers: settings, and the prediction network's outputs for the prefixes."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, cast

import torch
from torch import Tensor

from asr.decode.fusion.shallow_fusion import Bonus, FusionMaker
from asr.decode.prefixes import Prefix
from asr.interfaces import BLANK_ID, Head, JointNetwork, Predictor, Tokenizer
from asr.settings.rule import whole


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


class BeamTransducer:
    """A beam search of a transducer; a subclass has the joiner, searches, and documents the settings."""

    streaming = None
    max_seconds = None

    def __init__(
        self,
        head: Head,
        tokenizer: Tokenizer,
        normalize: Callable[[str], str],
        *,
        beam_size: Annotated[int, whole(1, 10_000)],
        beam_threshold: Bonus,
        tokens_per_frame: Annotated[int, whole(1, 10_000)],
        max_symbols: Annotated[int, whole(1, 1_000)],
        fusion: FusionMaker,
    ) -> None:
        self.head: Any = head
        self.beam_size = self.max_hypotheses = beam_size
        self.beam_threshold = beam_threshold
        self.tokens_per_frame = min(tokens_per_frame, tokenizer.vocab_size - 1)
        self.max_symbols = max_symbols
        self.fusion = fusion(tokenizer, normalize)
        self.hotwords, self.tunable = self.fusion.hotwords, self.fusion.tunable
        self.description = self.fusion.describe(f"beam search, {beam_size} hypotheses")

    @property
    def joiner(self) -> JointNetwork:
        """The joint network of the head."""
        raise NotImplementedError

    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the joiner's input from the frames of each utterance, (T', J)."""
        rows = self.joiner.of_frames(encoder_out)  # (B, T', J)
        return [row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]
