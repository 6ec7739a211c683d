"""Greedy (best path) CTC decoding."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Self, cast

from torch import Tensor

from asr.interfaces import BLANK_ID, NO_BIASING, Encoded, FrameHead, Head, Hypothesis, Tokenizer, Tunable
from asr.lengths import padding_mask


class Greedy:
    """Take the best token of each frame, merge repeats and drop blanks.

    Args:
        head: a head with a frame head.
        tokenizer, normalize: part of the decoders' interface; not used.
    """

    needs = ("frame_head",)
    max_seconds = None
    max_hypotheses = 1
    biasing = NO_BIASING
    compile_hotwords = None
    tunable: Mapping[str, Tunable] = MappingProxyType({})
    description = "greedy: the best path"

    def __init__(self, head: Head, tokenizer: Tokenizer, normalize: Callable[[str], str]) -> None:
        self._log_probs = cast(FrameHead, head.frame_head).log_probs

    def evidence(self, encoded: Encoded) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best token's log-probability and id in each frame, (B, T') each, and the numbers of frames."""
        best, paths = encoded.log_probs_by(self._log_probs).max(dim=-1)  # (B, T')
        return best, paths, encoded.lengths

    def search(self, evidence: tuple[Tensor, Tensor, Tensor]) -> list[list[Hypothesis]]:
        """Return one hypothesis per utterance, scored by its best path."""
        best, paths, lengths = evidence
        scores = best.masked_fill(padding_mask(lengths, best.shape[1]), 0.0).sum(dim=-1).tolist()
        return [
            [Hypothesis(_collapse(path[:length]), score)]
            for path, length, score in zip(paths.tolist(), lengths.tolist(), scores, strict=True)
        ]

    @property
    def streaming(self) -> Self:
        """Return this decoder, because the search continues from chunk to chunk."""
        return self

    def initial_state(self) -> "BestPath":
        """Begin a stream."""
        return BestPath([], BLANK_ID, 0.0)

    def step(self, encoded: Encoded, states: "Sequence[BestPath]") -> "tuple[list[list[Hypothesis]], list[BestPath]]":
        """Continue streams with the next chunk of each; tokens of a best path are final immediately."""
        best, paths, _ = self.evidence(encoded)
        frames = zip(paths.tolist(), best.tolist(), encoded.frame_counts, states, strict=True)
        new = [
            BestPath(
                [*state.tokens, *_collapse(path[:length], state.last)],
                path[length - 1] if length else state.last,
                state.score + sum(scores[:length]),
            )
            for path, scores, length, state in frames
        ]
        return [[Hypothesis(state.tokens, state.score, num_final=len(state.tokens))] for state in new], new

    @staticmethod
    def decide(state: "BestPath", tokens: list[int]) -> "BestPath":
        """Return the state unchanged: there is only one hypothesis."""
        return state

    @staticmethod
    def forget(state: "BestPath", num_tokens: int) -> "BestPath":
        """Drop the first `num_tokens` tokens."""
        return state._replace(tokens=state.tokens[num_tokens:])

    @staticmethod
    def settle(state: "BestPath") -> "tuple[Hypothesis, BestPath]":
        """Make all tokens final; the new state continues after them."""
        return Hypothesis(state.tokens, state.score, num_final=len(state.tokens)), state._replace(tokens=[])


class BestPath(NamedTuple):
    """State of a stream's best path.

    Args:
        tokens: tokens that `forget` has not dropped.
        last: token of the last frame.
        score: total score of all frames.
    """

    tokens: list[int]
    last: int
    score: float


def _collapse(path: list[int], last: int = BLANK_ID) -> list[int]:
    """Merge repeats and drop blanks; `last` is the token of the preceding frame."""
    previous = [last, *path]
    return [token for token, before in zip(path, previous, strict=False) if token not in (before, BLANK_ID)]
