"""What chooses the tokens in a transducer's greedy search: their probability alone, or hotwords too."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from asr.components.decode.fusion.shallow_fusion import NEVER, Context, ShallowFusion
from asr.components.decode.greedy_steps import Emitted, Place, most_likely
from asr.interfaces import BLANK_ID

NUM_TOKENS = 20  # most likely tokens of a frame that are compared; as in the beam search


class Guide(Protocol):
    """What chooses the tokens of the paths of a batch."""

    def choose(self, log_probs: Tensor) -> Tensor:
        """Choose the next token of each path in each of its next frames, (B, W), from its log_probs, (B, W, V)."""

    def follow(self, emitted: Emitted, place: Place) -> Place:
        """Follow the paths by the tokens that they have emitted; return where they are, with their scores."""

    @property
    def contexts(self) -> Sequence[Context | None]:
        """The state of the hotwords of each path; None: unknown."""

    def endings(self) -> list[float]:
        """Return what each path gains if it ends here."""


class MostLikely:
    """Chooses the most likely tokens of N paths."""

    choose = staticmethod(most_likely)

    def __init__(self, number: int) -> None:
        self.contexts = [None] * number

    @staticmethod
    def follow(emitted: Emitted, place: Place) -> Place:
        """Return `place`."""
        return place

    def endings(self) -> list[float]:
        """Return zeros."""
        return [0.0] * len(self.contexts)


class HotwordGuide:
    """Chooses the tokens of paths by log-probability and bonus, as `asr.components.decode.fusion.hotwords` defines it.

    A token that leaves an unfinished phrase loses its bonus, which the blank would keep. So the blank is compared
    without this bonus; else a path that has begun a wrong phrase would rather emit nothing than leave it.

    Args:
        fusions: the hotwords of each path, without other models.
        contexts: context of each path; replaced when a path emits a token.
    """

    def __init__(self, fusions: Sequence[ShallowFusion], contexts: Iterable[Context]) -> None:
        self.contexts = list(contexts)
        self._fusions = fusions
        self._most = [fusion.most() for fusion in fusions]
        self._extended: list[dict[int, tuple[Context, float]]] = [{} for _ in fusions]

    def choose(self, log_probs: Tensor) -> Tensor:
        """Choose a token of each path in each of its next frames, (B, W), from its log_probs, (B, W, V)."""
        provisional = [
            fusion.provisional(context) for fusion, context in zip(self._fusions, self.contexts, strict=True)
        ]
        blanks = log_probs[..., BLANK_ID] - log_probs.new_tensor(provisional)[:, None]
        most = log_probs.new_tensor(self._most)[:, None]
        # Few frames, unless the network is unsure.
        competes = log_probs[..., BLANK_ID + 1 :].amax(dim=-1) + most > blanks
        top = log_probs[competes].topk(min(NUM_TOKENS, log_probs.shape[-1]), dim=-1)
        chosen = torch.full_like(blanks, BLANK_ID, dtype=torch.int64)
        paths = competes.nonzero()[:, 0].tolist()
        rows = zip(paths, blanks[competes].tolist(), top.values.tolist(), top.indices.tolist(), strict=True)
        chosen[competes] = chosen.new_tensor([self._best(*row) for row in rows])
        return chosen

    def _best(self, number: int, blank: float, values: list[float], tokens: list[int]) -> int:
        best, chosen = blank, BLANK_ID
        for value, token in zip(values, tokens, strict=True):
            if value + self._most[number] <= best:
                break
            score = value + self._extend(number, token)[1] if token != BLANK_ID else NEVER
            if score > best:
                best, chosen = score, token
        return chosen

    def _extend(self, number: int, token: int) -> tuple[Context, float]:
        known = self._extended[number]
        if token not in known:
            extended = self._fusions[number].extend(self.contexts[number], token)
            assert extended is not None  # only a lexicon excludes tokens
            known[token] = extended
        return known[token]

    def follow(self, emitted: Emitted, place: Place) -> Place:
        """Follow the paths by the tokens that they have emitted; add their bonuses to the scores."""
        gains = []
        for number, token in enumerate(emitted.tokens.tolist()):
            gain = 0.0
            if token != BLANK_ID:
                self.contexts[number], gain = self._extend(number, token)
                self._extended[number] = {}
            gains.append(gain)
        return place._replace(scores=place.scores + place.scores.new_tensor(gains))

    def endings(self) -> list[float]:
        """Return the gain of each path if it ends here."""
        return [fusion.finish(context) or 0.0 for fusion, context in zip(self._fusions, self.contexts, strict=True)]
