"""The step of a transducer's greedy search from one token to the next, with and without durations."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from asr.base.system.devices import answers_at_once, sent
from asr.components.decode.predictions import next_log_probs
from asr.interfaces import BLANK_ID, TransducerHead

LOOK_AHEAD = 4  # number of frames that the joiner processes at once, or of blanks that are skipped without a wait
PASSES_PER_WAIT = 8

Choose = Callable[[Tensor], Tensor]  # token of each path in each of W frames, (B, W), from its log_probs, (B, W, V)


class Place(NamedTuple):
    """Where the paths of a batch are.

    Args:
        frames: current frame of each path, (B,).
        symbols: tokens that each path has emitted in its current frame, (B,).
        scores: score of each path, (B,).
    """

    frames: Tensor
    symbols: Tensor
    scores: Tensor


class Emitted(NamedTuple):
    """At most one token per utterance: token (the blank: none), its span, and its log-probability; (B,) each."""

    tokens: Tensor
    starts: Tensor
    ends: Tensor
    log_probs: Tensor


def remain(paths: Tensor, num_passes: int) -> bool:
    """Return whether any path may remain, (B,), after this number of passes.

    Where the answer is a wait for the device, it is asked once in `PASSES_PER_WAIT` passes; a pass changes no path that
    has ended.
    """
    return (not answers_at_once(paths.device) and num_passes % PASSES_PER_WAIT != 0) or bool(paths.any())


def most_likely(log_probs: Tensor) -> Tensor:
    """Choose the most likely token of each path in each frame, (B, W), from its log_probs, (B, W, V)."""
    return log_probs.argmax(dim=-1)


class GreedyWalk:
    """The steps of a batch from token to token.

    Args:
        head: a transducer.
        max_symbols: maximum number of tokens in a frame.
        choose: chooses tokens.
        frames: the joiner's input from the frames, (B, T', J).
        lengths: (B,).
    """

    def __init__(self, head: TransducerHead, max_symbols: int, choose: Choose, frames: Tensor, lengths: Tensor) -> None:
        self.head, self.max_symbols, self.choose = head, max_symbols, choose
        self.frames, self.lengths = frames, lengths
        self.durations = sent(torch.tensor(head.durations, dtype=torch.int64), lengths.device)

    def __call__(self, before: Tensor, place: Place) -> tuple[Emitted, Place]:
        """Emit at most one token per utterance.

        Args:
            before: the joiner's input from the tokens so far, (B, J).
            place: where the paths are.
        """
        return (self._by_durations if self.head.durations else self._by_frames)(before, place)

    def _by_frames(self, before: Tensor, place: Place) -> tuple[Emitted, Place]:
        """Skip blanks, each of one frame, in the next `LOOK_AHEAD` frames; emit the first token after them."""
        (number, symbols, scores), device = place, self.lengths.device
        rows = torch.arange(len(self.lengths), device=device)
        window = number[:, None] + torch.arange(LOOK_AHEAD, device=device)  # (B, W): independent until a token
        here = self.frames[rows[:, None], window.clamp(max=self.frames.shape[1] - 1)]  # (B, W, J)
        log_probs, _ = next_log_probs(self.head, here.flatten(0, 1), before.repeat_interleave(LOOK_AHEAD, dim=0))
        log_probs = log_probs.unflatten(0, (-1, LOOK_AHEAD))  # (B, W, V)
        token = self.choose(log_probs)  # (B, W)
        best = log_probs.gather(-1, token[..., None])[..., 0]
        emits = token != BLANK_ID
        emits[:, 0] &= symbols < self.max_symbols
        is_there = window < self.lengths[:, None]
        waits = (~emits | ~is_there).cumprod(dim=1).bool()  # frames before the first that emits a token
        passes = waits & is_there
        scores = scores + log_probs[:, :, BLANK_ID].masked_fill(~passes, 0.0).sum(dim=1)
        passed = passes.sum(dim=1)  # (B,)
        writes = ~waits[:, -1]
        first = passed.clamp(max=LOOK_AHEAD - 1)
        token, best = torch.where(writes, token[rows, first], BLANK_ID), best[rows, first]
        number = number + passed
        symbols = (symbols * (passed == 0) + 1) * writes
        return Emitted(token, number, number + 1, best), Place(number, symbols, scores + best.masked_fill(~writes, 0.0))

    def _by_durations(self, before: Tensor, place: Place) -> tuple[Emitted, Place]:
        """Skip blanks, each by its most likely duration; emit the token after them, and advance by its duration.

        All blanks are skipped or, where the device would have to be asked after each, `LOOK_AHEAD - 1` and no token may
        be emitted. A blank whose most likely duration is 0 lasts one frame, as in NVIDIA NeMo.
        """
        (number, symbols, scores), lengths = place, self.lengths
        num_arcs, asks = 0, answers_at_once(lengths.device)
        searching = number < lengths
        token, log_prob = torch.full_like(lengths, BLANK_ID), scores.new_zeros(len(lengths))
        duration = torch.zeros_like(lengths)
        while bool(searching.any()) if asks else num_arcs < LOOK_AHEAD:
            num_arcs += 1
            here, score, taken, token_log_prob = self._arc(number, before, symbols >= self.max_symbols)
            writes, passes = searching & (here != BLANK_ID), searching & (here == BLANK_ID)
            scores = torch.where(searching, scores + score, scores)
            token, duration = torch.where(writes, here, token), torch.where(writes, taken, duration)
            log_prob = torch.where(writes, token_log_prob, log_prob)
            number = torch.where(passes, number + taken, number)
            symbols = symbols.masked_fill(passes, 0)
            searching = passes & (number < lengths)
        symbols = torch.where((token != BLANK_ID) & (duration == 0), symbols + 1, 0)
        emitted = Emitted(token, number, number + duration.clamp(min=1), log_prob)
        return emitted, Place(number + duration, symbols, scores)

    def _arc(self, number: Tensor, before: Tensor, is_full: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Choose the token and the most likely duration of each utterance in its current frame.

        Args:
            number: current frame, (B,).
            before: the joiner's input from the tokens so far, (B, J).
            is_full: whether the current frame already has the maximum number of tokens, (B,).

        Returns:
            Token, log-probability of token and duration, duration, and log-probability of the token alone; (B,) each.
        """
        rows = torch.arange(len(self.frames), device=self.frames.device)
        here = self.frames[rows, number.clamp(max=self.frames.shape[1] - 1)]
        token_log_probs, duration_log_probs = next_log_probs(self.head, here, before)
        token = self.choose(token_log_probs[:, None])[:, 0].masked_fill(is_full, BLANK_ID)
        kind = duration_log_probs.argmax(dim=1)
        one_frame = is_full | ((token == BLANK_ID) & (self.durations[kind] == 0))
        kind = kind.masked_fill(one_frame, self.head.durations.index(1))
        token_log_prob = token_log_probs[rows, token]
        return token, token_log_prob + duration_log_probs[rows, kind], self.durations[kind], token_log_prob
