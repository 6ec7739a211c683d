"""The step of a transducer's greedy search from one token to the next, with and without durations."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from asr.base.system.devices import answers_at_once
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


def by_frames(
    head: TransducerHead,
    max_symbols: int,
    choose: Choose,
    frames: Tensor,
    lengths: Tensor,
    before: Tensor,
    place: Place,
) -> tuple[Emitted, Place]:
    """Skip blanks, each of one frame, in the next `LOOK_AHEAD` frames; emit the first token after them.

    Args:
        head: a transducer without durations.
        max_symbols: maximum number of tokens in a frame.
        choose: chooses tokens.
        frames: the joiner's input from the frames, (B, T', J).
        lengths: (B,).
        before: the joiner's input from the tokens so far, (B, J).
        place: where the paths are.
    """
    number, symbols, scores = place
    rows = torch.arange(len(lengths), device=lengths.device)
    window = number[:, None] + torch.arange(LOOK_AHEAD, device=lengths.device)  # (B, W): independent until a token
    here = frames[rows[:, None], window.clamp(max=frames.shape[1] - 1)]  # (B, W, J)
    log_probs, _ = next_log_probs(head, here.flatten(0, 1), before.repeat_interleave(LOOK_AHEAD, dim=0))
    log_probs = log_probs.unflatten(0, (-1, LOOK_AHEAD))  # (B, W, V)
    token = choose(log_probs)  # (B, W)
    best = log_probs.gather(-1, token[..., None])[..., 0]
    emits = token != BLANK_ID
    emits[:, 0] &= symbols < max_symbols
    is_there = window < lengths[:, None]
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


def by_durations(
    durations: Tensor,
    head: TransducerHead,
    max_symbols: int,
    choose: Choose,
    frames: Tensor,
    lengths: Tensor,
    before: Tensor,
    place: Place,
) -> tuple[Emitted, Place]:
    """Skip blanks, each by its most likely duration; emit the token after them, and advance by its duration.

    All blanks are skipped or, where the device would have to be asked after each, `LOOK_AHEAD - 1` and no token may be
    emitted. A blank whose most likely duration is 0 lasts one frame, as in NVIDIA NeMo. `durations` are those of the
    head, on its device; other arguments as in `by_frames`.
    """
    number, symbols, scores = place
    num_arcs, asks = 0, answers_at_once(lengths.device)
    searching = number < lengths
    token, log_prob = torch.full_like(lengths, BLANK_ID), scores.new_zeros(len(lengths))
    duration = torch.zeros_like(lengths)
    while bool(searching.any()) if asks else num_arcs < LOOK_AHEAD:
        num_arcs += 1
        here, score, taken, token_log_prob = _arc(
            durations, head, choose, frames, number, before, symbols >= max_symbols
        )
        writes, passes = searching & (here != BLANK_ID), searching & (here == BLANK_ID)
        scores = torch.where(searching, scores + score, scores)
        token, duration = torch.where(writes, here, token), torch.where(writes, taken, duration)
        log_prob = torch.where(writes, token_log_prob, log_prob)
        number = torch.where(passes, number + taken, number)
        symbols = symbols.masked_fill(passes, 0)
        searching = passes & (number < lengths)
    symbols = torch.where((token != BLANK_ID) & (duration == 0), symbols + 1, 0)
    return Emitted(token, number, number + duration.clamp(min=1), log_prob), Place(number + duration, symbols, scores)


def _arc(
    durations: Tensor,
    head: TransducerHead,
    choose: Choose,
    frames: Tensor,
    number: Tensor,
    before: Tensor,
    is_full: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Choose the token and the most likely duration of each utterance in its current frame.

    Args:
        is_full: whether the current frame already has the maximum number of tokens, (B,).

    Returns:
        Token, log-probability of token and duration, duration, and log-probability of the token alone; (B,) each.
    """
    rows = torch.arange(len(frames), device=frames.device)
    here = frames[rows, number.clamp(max=frames.shape[1] - 1)]
    token_log_probs, duration_log_probs = next_log_probs(head, here, before)
    token = choose(token_log_probs[:, None])[:, 0].masked_fill(is_full, BLANK_ID)
    kind = duration_log_probs.argmax(dim=1)
    one_frame = is_full | ((token == BLANK_ID) & (durations[kind] == 0))
    kind = kind.masked_fill(one_frame, head.durations.index(1))
    token_log_prob = token_log_probs[rows, token]
    return token, token_log_prob + duration_log_probs[rows, kind], durations[kind], token_log_prob
