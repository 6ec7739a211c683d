"""Forced alignment: which encoder frames spell which token, and how much a text costs against another."""

import torch
import torchaudio.functional
from torch import Tensor

from asr.interfaces import BLANK_ID, Span

FLOOR = -1e4  # what a log-probability is at least; where no path is possible, torchaudio's would be no path of the text
MAX_CELLS = 1 << 27  # of torchaudio's table of frames x states, a byte each
STAY, STEP, SKIP = 0, 1, 2  # states that a path goes on by, from one frame to the next


def token_spans(log_probs: Tensor, tokens: list[int]) -> list[Span]:
    """Find the most likely path that spells `tokens`; its frames, token by token.

    *Source*: Kürzinger et al. 2020, arXiv:2007.09127, section 2; the search is torchaudio's, as far as its memory goes.

    Args:
        log_probs: of one utterance, (T', V), on the CPU.
        tokens: without blanks; at least `head.min_frames(tokens)` frames must be there.
    """
    if not tokens:
        return []
    if len(log_probs) * (2 * len(tokens) + 1) <= MAX_CELLS:
        path, _ = torchaudio.functional.forced_align(
            log_probs.float().clamp(min=FLOOR).contiguous()[None],
            torch.tensor([tokens], dtype=torch.int32),
            blank=BLANK_ID,
        )
        path = path[0]
    else:
        labels = torch.full((2 * len(tokens) + 1,), BLANK_ID)
        labels[1::2] = torch.tensor(tokens)
        path = labels[_best_states(log_probs, labels)]
    changes = torch.cat([path[1:] != path[:-1], path.new_ones(1, dtype=torch.bool)])  # (T',) the last of a run
    ends = changes.nonzero()[:, 0] + 1
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    runs = zip(path[starts].tolist(), starts.tolist(), ends.tolist(), strict=True)
    return [Span(start, end) for token, start, end in runs if token != BLANK_ID]


def _best_states(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Find the most likely path in memory that grows by the power of 2/3 of frames times states.

    A first pass keeps the scores at the beginning of each block of frames, and no choice. A second one goes through the
    blocks from the last to the first and finds again what was chosen in each, among the few states from which the
    path's state at its end can be reached. So the path is the most likely one of all, as if all choices had been kept.

    Args:
        log_probs: (T', V).
        labels: of the states, (S,): the tokens, with a blank before, between and behind them.

    Shapes:
        returns: states, (T',).
    """
    num_frames, num_states = len(log_probs), len(labels)
    size = max(1, round((2 * num_frames * num_states) ** (1 / 3)))  # then blocks' scores and choices are as large
    begins = range(0, num_frames, size)
    scores = torch.full((num_states,), -torch.inf)
    scores[0] = 0.0  # before the first frame: it can stay in the first state, or step into the second
    at_begin: list[Tensor] = []
    for begin in begins:
        scores = scores - scores.max()  # so that sums of any length have the same precision
        at_begin.append(scores)
        scores = _advance(scores, _costs(log_probs[begin : begin + size]), labels)
    states = torch.empty(num_frames, dtype=torch.int64)
    state = num_states - 2 + int(scores[-2:].argmax())
    for begin, scores in zip(reversed(begins), reversed(at_begin), strict=True):
        costs = _costs(log_probs[begin : begin + size])
        first = max(0, state - 2 * len(costs))
        choices = torch.empty(len(costs), state + 1 - first, dtype=torch.uint8)
        _advance(scores[first : state + 1], costs, labels[first : state + 1], choices)
        for frame, choice in reversed(list(enumerate(choices.numpy()))):
            states[begin + frame] = state
            state -= int(choice[state - first])
    return states


def _costs(log_probs: Tensor) -> Tensor:
    """(T', V) as the search adds them up: 0 for the likeliest of each frame, so that sums stay small."""
    log_probs = log_probs.float()
    return (log_probs - log_probs.max(dim=-1, keepdim=True).values).clamp(min=FLOOR)


def _advance(scores: Tensor, costs: Tensor, labels: Tensor, choices: Tensor | None = None) -> Tensor:
    """Go on by some frames from the scores of the best paths to each state; return those behind them.

    Args:
        scores: (S,).
        costs: of the frames, (T', V).
        labels: of the states, (S,).
        choices: gets what the best path to each state at each frame came by, (T', S).
    """
    num_states = len(labels)
    may_skip = torch.zeros(num_states, dtype=torch.bool)  # a blank, between tokens that differ
    may_skip[2:] = (labels[2:] != BLANK_ID) & (labels[2:] != labels[:-2])
    no_skip = torch.where(may_skip, 0.0, -torch.inf)
    before = torch.full((num_states + 2,), -torch.inf)  # two more in front, from which there is no way
    stay, step, skip = before[2:], before[1:-1], before[:-2]
    stay.copy_(scores)
    best, other, emitted = torch.empty(num_states), torch.empty(num_states), torch.empty(num_states)
    for frame, cost in enumerate(costs):
        torch.maximum(stay, step, out=best)
        torch.add(skip, no_skip, out=other)
        if choices is not None:
            choices[frame] = torch.where(other > best, SKIP, torch.where(step > stay, STEP, STAY))
        torch.maximum(best, other, out=best)
        torch.index_select(cost, 0, labels, out=emitted)
        torch.add(best, emitted, out=stay)
    return stay.clone()


def frame_deficits(log_probs: Tensor, tokens: list[int], spans: list[Span]) -> Tensor:
    """Tell how much less likely the path of `tokens` is, frame by frame, than the best path of all.

    Shapes:
        log_probs: (T', V).
        returns: (T',), at most 0; 0 where the net would write the same.
    """
    path = torch.full((len(log_probs),), BLANK_ID)
    for token, span in zip(tokens, spans, strict=True):
        path[span.start : span.end] = token
    return log_probs.gather(1, path[:, None])[:, 0] - log_probs.max(dim=-1).values
