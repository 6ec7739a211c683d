"""What greedy searches of transducers have in common: tokens as they are written, and where a stream stands."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asr.interfaces import BLANK_ID, Hypothesis, JointNetwork, Predictor, Span
from asr.kernels.choice import exact


class Place(NamedTuple):
    """Where the paths of a batch stand.

    Args:
        frames: that each path is in, counted from the first of the frames to come, (B,).
        tokens: the last of each, (B,).
        scores: of each, (B,).
        before: what the joiner takes of the tokens, (B, J).
        state: of the prediction network, (B, ...).
    """

    frames: Tensor
    tokens: Tensor
    scores: Tensor
    before: Tensor
    state: Tensor


class WrittenTokens(NamedTuple):
    """Tokens of an utterance.

    Args:
        tokens: without blanks.
        frames: that each stands for.
        confidences: of each, its probability.
    """

    tokens: list[int]
    frames: list[Span]
    confidences: list[float]


class GreedyPath(NamedTuple):
    """Where the path of a stream stands.

    Args:
        written: tokens that were not forgotten; frames are counted from the beginning of the stream.
        num_frames: of the stream so far.
        place: of a batch of one.
    """

    written: WrittenTokens
    num_frames: int
    place: Place


class TokenSteps:
    """Tokens of a batch as they are written, a tensor (B,) each; blank where an utterance writes none."""

    def __init__(self, num_utterances: int) -> None:
        self._num_utterances = num_utterances
        self._steps: list[tuple[Tensor, ...]] = []

    def add(self, tokens: Tensor, starts: Tensor, ends: Tensor, log_probs: Tensor) -> None:
        """Write a token in some of the utterances: with its frames, and its log-probability for its confidence."""
        self._steps.append((tokens, starts, ends, log_probs.exp()))

    def written(self) -> list[WrittenTokens]:
        """The tokens of each utterance."""
        if not self._steps:
            return [WrittenTokens([], [], []) for _ in range(self._num_utterances)]
        columns = [torch.stack(column, dim=1).tolist() for column in zip(*self._steps, strict=True)]
        rows = []
        for row in zip(*columns, strict=True):
            tokens = [each for each in zip(*row, strict=True) if each[0] != BLANK_ID]
            rows.append(
                WrittenTokens(
                    [token for token, *_ in tokens],
                    [Span(start, end) for _, start, end, _ in tokens],
                    [min(1.0, confidence) for *_, confidence in tokens],
                )
            )
        return rows


def begin(predictor: Predictor, joiner: JointNetwork, number: int) -> Place:
    """Stand before the first frame of `number` utterances, with nothing written."""
    state = predictor.initial_state(number)
    tokens = torch.full((number,), BLANK_ID, device=state.device)
    out, state = predictor.step(tokens, state)
    scores = torch.zeros(number, dtype=exact(state.device), device=state.device)
    return Place(torch.zeros_like(tokens), tokens, scores, joiner.of_tokens(out), state)


def read(predictor: Predictor, joiner: JointNetwork, place: Place, tokens: Tensor) -> Place:
    """Have the prediction network read a token in each utterance that has one, (B,); blank stands for none."""
    writes = tokens != BLANK_ID
    if not bool(writes.any()):
        return place
    tokens = torch.where(writes, tokens, place.tokens)
    out, after = predictor.step(tokens, place.state)
    state = torch.where(writes.view(-1, *[1] * (after.dim() - 1)), after, place.state)
    before = torch.where(writes[:, None], joiner.of_tokens(out), place.before)
    return place._replace(tokens=tokens, before=before, state=state)


def begin_stream(predictor: Predictor, joiner: JointNetwork) -> GreedyPath:
    """Begin a stream."""
    return GreedyPath(WrittenTokens([], [], []), 0, begin(predictor, joiner, 1))


def together(states: Sequence[GreedyPath]) -> Place:
    """Put the places of streams into one batch."""
    return Place(*map(torch.cat, zip(*(state.place for state in states), strict=True)))


def continued(
    states: Sequence[GreedyPath], lengths: Tensor, written: Sequence[WrittenTokens], place: Place
) -> list[GreedyPath]:
    """Add what the next `lengths` frames of each stream wrote, (B,), and where that left it."""
    new = []
    for number, (state, added, length) in enumerate(zip(states, written, lengths.tolist(), strict=True)):
        frames = [Span(state.num_frames + start, state.num_frames + end) for start, end in added.frames]
        before = state.written
        after = WrittenTokens(
            before.tokens + added.tokens, before.frames + frames, before.confidences + added.confidences
        )
        own = Place(*(rows[number : number + 1].clone() for rows in place))
        new.append(GreedyPath(after, state.num_frames + length, own))
    return new


def hypothesis(state: GreedyPath) -> Hypothesis:
    """The tokens of a stream, none of which ever changes."""
    tokens, frames, confidences = state.written
    return Hypothesis(tokens, float(state.place.scores), frames, confidences, num_final=len(tokens))


def decide(state: GreedyPath, tokens: list[int]) -> GreedyPath:
    """There is but one hypothesis."""
    return state


def forget(state: GreedyPath, num_tokens: int) -> GreedyPath:
    """Leave out the first tokens; the prediction network remembers them."""
    tokens, frames, confidences = state.written
    rest = WrittenTokens(tokens[num_tokens:], frames[num_tokens:], confidences[num_tokens:])
    return state._replace(written=rest)


def settled(state: GreedyPath) -> GreedyPath:
    """Take all tokens for good, and continue after them."""
    return state._replace(written=WrittenTokens([], [], []))
