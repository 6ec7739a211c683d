"""Greedy decoding of a token-and-duration transducer in batches."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Self, cast

import torch
from torch import Tensor

from asr.decode import greedy_paths
from asr.decode.greedy_paths import Cursor, GreedyPath, TokenSteps, WrittenTokens
from asr.interfaces import (
    BLANK_ID,
    NO_HOTWORDS,
    DurationHead,
    Encoded,
    Head,
    Hypothesis,
    JointNetwork,
    Predictor,
    Span,
    Tokenizer,
    Tunable,
)
from asr.settings.rule import whole


class TDTGreedy:
    """Repeatedly emit the most likely token and advance by the most likely duration, until the frames end.

    A token starts at the frame where it is emitted and lasts for its duration; its confidence is its probability.

    *Source*: Xu et al. 2023, arXiv:2304.06795, section 3.4. A batch is decoded in a loop over labels (Bataev et al.
    2024, arXiv:2406.06220): each utterance skips its blanks, then the prediction network reads the next token of all
    utterances. A blank whose most likely duration is 0 lasts one frame, as in NVIDIA NeMo.

    Args:
        head: a head with a joiner of tokens and durations.
        tokenizer: not used.
        normalize: not used.
        max_symbols: maximum number of tokens in a frame; after them, a blank of one frame is emitted.
    """

    needs = ("duration_joiner",)
    max_seconds = None
    max_hypotheses = 1
    hotwords = NO_HOTWORDS
    tunable: Mapping[str, Tunable] = MappingProxyType({})
    description = "greedy: the most likely token and duration"

    def __init__(
        self,
        head: Head,
        tokenizer: Tokenizer,
        normalize: Callable[[str], str],
        *,
        max_symbols: Annotated[int, whole(1, 1_000)],
    ) -> None:
        self.head = cast(DurationHead, head)
        self.max_symbols = max_symbols

    def evidence(self, encoded: Encoded) -> tuple[Tensor, Tensor]:
        """Return the joiner's input from the frames, (B, T', J), and the lengths."""
        return self.head.duration_joiner.of_frames(encoded.out), encoded.lengths

    @torch.inference_mode()
    def search(self, evidence: tuple[Tensor, Tensor]) -> list[list[Hypothesis]]:
        """Return one hypothesis per utterance, scored by its path."""
        frames, lengths = evidence
        start = greedy_paths.begin(*self._parts, len(lengths))
        written, cursor = self._walk(frames, lengths, start)
        hypotheses = []
        for row, score, length in zip(written, cursor.scores.tolist(), lengths.tolist(), strict=True):
            inside = [Span(start, min(end, length)) for start, end in row.frames]
            hypotheses.append([Hypothesis(row.tokens, score, inside, row.confidences, has_ends=True)])
        return hypotheses

    @property
    def streaming(self) -> Self:
        """Return this decoder, because the search continues from chunk to chunk."""
        return self

    @torch.inference_mode()
    def initial_state(self) -> GreedyPath:
        """Begin a stream."""
        return greedy_paths.begin_stream(*self._parts)

    @torch.inference_mode()
    def step(self, encoded: Encoded, states: Sequence[GreedyPath]) -> tuple[list[list[Hypothesis]], list[GreedyPath]]:
        """Continue streams with the next chunk of each; all tokens are final immediately."""
        frames, lengths = self.evidence(encoded)
        written, cursor = self._walk(frames, lengths, greedy_paths.together(states))
        new = greedy_paths.continued(states, lengths, written, cursor)
        return [[self._hypothesis(state)] for state in new], new

    decide = staticmethod(greedy_paths.decide)
    forget = staticmethod(greedy_paths.forget)

    @classmethod
    def settle(cls, state: GreedyPath) -> tuple[Hypothesis, GreedyPath]:
        """Make all tokens final; the new state continues after them."""
        return cls._hypothesis(state), greedy_paths.settled(state)

    @property
    def _parts(self) -> tuple[Predictor, JointNetwork]:
        return self.head.predictor, self.head.duration_joiner

    @staticmethod
    def _hypothesis(state: GreedyPath) -> Hypothesis:
        return greedy_paths.hypothesis(state)._replace(has_ends=True)

    def _walk(self, frames: Tensor, lengths: Tensor, cursor: Cursor) -> tuple[list[WrittenTokens], Cursor]:
        """Emit tokens from frames (B, T', J); each pass of the outer loop emits at most one token per utterance."""
        steps = TokenSteps(len(lengths))
        number = cursor.frames  # current frame of each utterance
        scores, symbols = cursor.scores, torch.zeros_like(lengths)  # symbols: tokens emitted in the current frame
        while bool((number < lengths).any()):
            searching = number < lengths
            token, log_prob = torch.full_like(lengths, BLANK_ID), scores.new_zeros(len(lengths))
            duration = torch.zeros_like(lengths)
            while bool(searching.any()):
                is_full = symbols >= self.max_symbols
                here, score, taken, token_log_prob = self._arc(frames, number, cursor.before, is_full)
                writes, passes = searching & (here != BLANK_ID), searching & (here == BLANK_ID)
                scores = torch.where(searching, scores + score, scores)
                token, duration = torch.where(writes, here, token), torch.where(writes, taken, duration)
                log_prob = torch.where(writes, token_log_prob, log_prob)
                number = torch.where(passes, number + taken, number)
                symbols = symbols.masked_fill(passes, 0)
                searching = passes & (number < lengths)
            steps.add(token, number, number + duration.clamp(min=1), log_prob)
            symbols = torch.where((token != BLANK_ID) & (duration == 0), symbols + 1, 0)
            number = number + duration
            cursor = greedy_paths.read(*self._parts, cursor, token)
        return steps.written(), cursor._replace(frames=number - lengths, scores=scores)

    def _arc(
        self, frames: Tensor, number: Tensor, before: Tensor, is_full: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Choose the most likely token and duration of each utterance in its current frame.

        Args:
            frames: (B, T', J).
            number: current frame of each utterance, (B,).
            before: the joiner's input from the tokens so far, (B, J).
            is_full: whether the current frame already has the maximum number of tokens, (B,).

        Returns:
            Token, log-probability of token and duration, duration, and log-probability of the token alone; (B,) each.
        """
        durations = torch.tensor(self.head.durations, device=frames.device)
        rows = torch.arange(len(frames), device=frames.device)
        here = frames[rows, number.clamp(max=frames.shape[1] - 1)]
        logits = self.head.duration_joiner(here, before)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        token_logits, duration_logits = logits.split([logits.shape[1] - len(durations), len(durations)], dim=1)
        token_log_probs, duration_log_probs = token_logits.log_softmax(dim=1), duration_logits.log_softmax(dim=1)
        token = token_log_probs.argmax(dim=1).masked_fill(is_full, BLANK_ID)
        kind = duration_log_probs.argmax(dim=1)
        one_frame = is_full | ((token == BLANK_ID) & (durations[kind] == 0))
        kind = kind.masked_fill(one_frame, self.head.durations.index(1))
        token_log_prob = token_log_probs[rows, token]
        return token, token_log_prob + duration_log_probs[rows, kind], durations[kind], token_log_prob
