"""Greedy decoding of a transducer, a batch at a time."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, NamedTuple, Self, cast

import torch
from torch import Tensor

from asr.interfaces import BLANK_ID, NO_HOTWORDS, Head, Hypothesis, Tokenizer, TransducerHead, Tunable
from asr.kernels.choice import exact
from asr.settings.rule import whole

LOOK_AHEAD = 4  # frames that are joined at once


class TransducerGreedy:
    """Write the most likely token, frame by frame, until that is the blank; then go on to the next frame.

    *Source*: Graves 2012, arXiv:1211.3711. Each utterance of a batch is in a frame of its own (Bataev et al. 2024,
    arXiv:2406.06220), so that none waits for another's tokens. No more tokens are written than the frames can spell
    by CTC, which gives them their times.

    Args:
        head: with a joiner and a predictor.
        tokenizer, normalize: as for every decoder; the most likely token asks neither.
        max_symbols: tokens in a frame, at most.
    """

    needs = ("joiner",)
    max_seconds = None
    max_hypotheses = 1
    hotwords = NO_HOTWORDS
    tunable: Mapping[str, Tunable] = MappingProxyType({})
    description = "greedy: the most likely token"

    def __init__(
        self,
        head: Head,
        tokenizer: Tokenizer,
        normalize: Callable[[str], str],
        *,
        max_symbols: Annotated[int, whole(1, 1_000)],
    ) -> None:
        self.head = cast(TransducerHead, head)
        self.max_symbols = max_symbols

    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """What the joiner takes of each frame, (B, T', J), and the lengths."""
        return self.head.joiner.of_frames(encoder_out), lengths

    @torch.inference_mode()
    def search(self, evidence: tuple[Tensor, Tensor]) -> list[list[Hypothesis]]:
        """Find one hypothesis of each utterance, scored by its path."""
        frames, lengths = evidence
        written, behind = self._walk(frames, lengths, self._begin(len(lengths)), room=lengths)
        return [[Hypothesis(*path)] for path in zip(written, behind.scores.tolist(), strict=True)]

    @property
    def streaming(self) -> Self:
        """Itself: it can go on from chunk to chunk."""
        return self

    @torch.inference_mode()
    def initial_state(self) -> "TransducerPath":
        """Begin a stream."""
        return TransducerPath([], self._begin(1))

    @torch.inference_mode()
    def step(
        self, encoder_out: Tensor, lengths: Tensor, states: "Sequence[TransducerPath]"
    ) -> "tuple[list[list[Hypothesis]], list[TransducerPath]]":
        """Go on with streams by encoder_out (B, T', D), (B,): no token ever changes.

        How many frames are to come is not known, and bounds no tokens here.
        """
        begun = Place(*map(torch.cat, zip(*(state.place for state in states), strict=True)))
        frames, _ = self.evidence(encoder_out, lengths)
        room = torch.full_like(lengths, torch.iinfo(lengths.dtype).max)
        written, behind = self._walk(frames, lengths, begun, room)
        new = [
            TransducerPath([*state.tokens, *tokens], Place(*(rows[number : number + 1].clone() for rows in behind)))
            for number, (state, tokens) in enumerate(zip(states, written, strict=True))
        ]
        return [[self._hypothesis(state)] for state in new], new

    @staticmethod
    def decide(state: "TransducerPath", tokens: list[int]) -> "TransducerPath":
        """There is but one hypothesis."""
        return state

    @staticmethod
    def forget(state: "TransducerPath", num_tokens: int) -> "TransducerPath":
        """Leave out the first tokens; the prediction network remembers them."""
        return state._replace(tokens=state.tokens[num_tokens:])

    @classmethod
    def settle(cls, state: "TransducerPath") -> "tuple[Hypothesis, TransducerPath]":
        """Take what there is, and go on behind it."""
        return cls._hypothesis(state), state._replace(tokens=[])

    @staticmethod
    def _hypothesis(state: "TransducerPath") -> Hypothesis:
        return Hypothesis(state.tokens, float(state.place.scores), num_final=len(state.tokens))

    def _begin(self, number: int) -> "Place":
        """Stand before the first frame of so many utterances, with nothing written."""
        state = self.head.predictor.initial_state(number)
        tokens = torch.full((number,), BLANK_ID, device=state.device)
        out, state = self.head.predictor.step(tokens, state)
        scores = torch.zeros(number, dtype=exact(state.device), device=state.device)
        return Place(tokens, scores, self.head.joiner.of_tokens(out), state)

    def _walk(self, frames: Tensor, lengths: Tensor, begun: "Place", room: Tensor) -> "tuple[list[list[int]], Place]":
        """Write tokens of frames (B, T', J), no more than can be spelt in `room` frames, (B,)."""
        tokens, scores, before, state = begun
        number = torch.zeros_like(lengths)  # of the frame that each utterance is in
        written = torch.zeros_like(lengths)  # tokens, in that frame
        needed = torch.zeros_like(lengths)  # frames, to spell the tokens so far
        rows = torch.arange(len(lengths), device=lengths.device)
        ahead = torch.arange(LOOK_AHEAD, device=lengths.device)
        steps: list[Tensor] = []
        while bool((number < lengths).any()):
            window = number[:, None] + ahead  # (B, W): until a token is written, frames do not depend on one another
            here = frames[rows[:, None], window.clamp(max=frames.shape[1] - 1)]  # (B, W, J)
            logits = self.head.joiner(here.flatten(0, 1), before.repeat_interleave(LOOK_AHEAD, dim=0))
            log_probs = logits.log_softmax(dim=-1).unflatten(0, (-1, LOOK_AHEAD))  # (B, W, V)
            best, token = log_probs.max(dim=-1)  # (B, W)
            cost = 1 + (token == tokens[:, None]).long()
            can = (token != BLANK_ID) & (needed[:, None] + cost <= room[:, None])
            can[:, 0] &= written < self.max_symbols
            is_there = window < lengths[:, None]
            waits = (~can | ~is_there).cumprod(dim=1).bool()  # frames before the first that writes
            passes = waits & is_there
            scores = scores + log_probs[:, :, BLANK_ID].masked_fill(~passes, 0.0).sum(dim=1)
            passed = passes.sum(dim=1)  # (B,)
            writes = ~waits[:, -1]
            first = passed.clamp(max=LOOK_AHEAD - 1)
            token, best, cost = token[rows, first], best[rows, first], cost[rows, first]
            scores = scores + best.masked_fill(~writes, 0.0)
            steps.append(torch.where(writes, token, BLANK_ID))
            number += passed
            written = (written * (passed == 0) + 1) * writes
            needed += cost * writes
            if bool(writes.any()):
                tokens = torch.where(writes, token, tokens)
                out, after = self.head.predictor.step(tokens, state)
                state = torch.where(writes.view(-1, *[1] * (state.dim() - 1)), after, state)
                before = torch.where(writes[:, None], self.head.joiner.of_tokens(out), before)
        found = torch.stack(steps, dim=1).tolist() if steps else [[]] * len(lengths)
        texts = [[token for token in row if token != BLANK_ID] for row in found]
        return texts, Place(tokens, scores, before, state)


class Place(NamedTuple):
    """Where the paths of a batch have come to.

    Args:
        tokens: the last of each, (B,).
        scores: of each, (B,).
        before: what the joiner takes of the tokens, (B, J).
        state: of the prediction network, (B, ...).
    """

    tokens: Tensor
    scores: Tensor
    before: Tensor
    state: Tensor


class TransducerPath(NamedTuple):
    """Where the path of a stream has come to.

    Args:
        tokens: that were not forgotten.
        place: of a batch of one.
    """

    tokens: list[int]
    place: Place
