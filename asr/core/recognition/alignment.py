"""Forced alignment: the encoder frames of each token, and the log-probability of a text relative to the best path."""

import torch
from torch import Tensor

from asr.base.kernels.native import torchaudio_functions
from asr.base.system.devices import sent
from asr.interfaces import BLANK_ID, Span

FLOOR = -1e4  # minimum log-probability; without it, torchaudio returns a wrong text if all paths are impossible
MAX_CELLS = 1 << 27  # maximum number of cells of torchaudio's table of frames x states, one byte per cell
STAY, STEP, SKIP = 0, 1, 2  # number of states by which a path advances from one frame to the next


def token_spans(log_probs: Tensor, tokens: list[int]) -> list[Span]:
    """Find the most likely path that spells `tokens`, and return the frames of each token.

    *Source*: Kürzinger et al. 2020, arXiv:2007.09127, section 2. torchaudio searches for the path; if its table
    would have more than `MAX_CELLS` cells, or it cannot be imported, `_best_states` searches instead.

    Args:
        log_probs: log_probs of one utterance, (T', V); T' must be at least `head.min_frames(tokens)`. Only the columns
            of the tokens are copied to the CPU.
        tokens: token ids without blanks.
    """
    if not tokens:
        return []
    # The blank has the smallest id, so that it is the first column.
    used, columns = torch.tensor([BLANK_ID, *tokens]).unique(return_inverse=True)
    kept = log_probs[:, sent(used, log_probs.device)].float().cpu()
    functions = torchaudio_functions()
    if functions is not None and len(log_probs) * (2 * len(tokens) + 1) <= MAX_CELLS:
        targets = columns[None, 1:].int()
        [path], _ = functions.forced_align(kept.clamp(min=FLOOR)[None], targets, blank=BLANK_ID)
    else:
        labels = torch.full((2 * len(tokens) + 1,), BLANK_ID)
        labels[1::2] = columns[1:]
        best = log_probs.max(dim=-1, keepdim=True).values.float().cpu()
        path = labels[_best_states((kept - best).clamp(min=FLOOR), labels)]
    changes = torch.cat([path[1:] != path[:-1], path.new_ones(1, dtype=torch.bool)])  # (T',) True at the end of a run
    ends = changes.nonzero()[:, 0] + 1
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    runs = zip(path[starts].tolist(), starts.tolist(), ends.tolist(), strict=True)
    return [Span(start, end) for token, start, end in runs if token != BLANK_ID]


def _best_states(costs: Tensor, labels: Tensor) -> Tensor:
    """Find the most likely path with memory proportional to (frames * states) ** (2 / 3).

    The first pass stores the scores at the beginning of each block of frames, but not the choices of transitions. The
    second pass goes through the blocks from the last to the first. It recomputes the choices of a block only for the
    states that can lead to the path's state at the end of the block. The result is exact: it equals that of a search
    that stores all choices.

    Args:
        costs: log-probabilities relative to the most likely token of each frame, which keeps sums small, (T', V).
        labels: labels of the states, (S,): blank, first token, blank, second token, and so on, ending with a blank.

    Shapes:
        returns: the path's state at each frame, (T',).
    """
    num_frames, num_states = len(costs), len(labels)
    size = max(1, round((2 * num_frames * num_states) ** (1 / 3)))  # at this size, scores and choices need equal memory
    begins = range(0, num_frames, size)
    scores = torch.full((num_states,), -torch.inf)
    scores[0] = 0.0  # before the first frame, only state 0 is possible; a path therefore begins in state 0 or 1
    at_begin: list[Tensor] = []
    for begin in begins:
        scores = scores - scores.max()  # the best score is 0, so that long sums stay precise
        at_begin.append(scores)
        scores = _advance(scores, costs[begin : begin + size], labels)
    states = torch.empty(num_frames, dtype=torch.int64)
    state = num_states - 2 + int(scores[-2:].argmax())
    for begin, scores in zip(reversed(begins), reversed(at_begin), strict=True):
        block = costs[begin : begin + size]
        first = max(0, state - 2 * len(block))
        choices = torch.empty(len(block), state + 1 - first, dtype=torch.uint8)
        _advance(scores[first : state + 1], block, labels[first : state + 1], choices)
        for frame, choice in reversed(list(enumerate(choices.numpy()))):
            states[begin + frame] = state
            state -= int(choice[state - first])
    return states


def _advance(scores: Tensor, costs: Tensor, labels: Tensor, choices: Tensor | None = None) -> Tensor:
    """Update the score of the best path to each state, frame by frame.

    Args:
        scores: scores before the first frame, (S,).
        costs: costs of the frames, (T', V).
        labels: labels of the states, (S,).
        choices: filled with STAY, STEP or SKIP, the last transition of the best path to each state at each frame,
            (T', S).

    Returns:
        Scores after the last frame, (S,).
    """
    num_states = len(labels)
    may_skip = torch.zeros(num_states, dtype=torch.bool)  # a path may skip the blank between two different tokens
    may_skip[2:] = (labels[2:] != BLANK_ID) & (labels[2:] != labels[:-2])
    no_skip = torch.where(may_skip, 0.0, -torch.inf)
    before = torch.full((num_states + 2,), -torch.inf)  # begins with two unreachable states
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
    """Return, for each frame, the log-probability of the path of `tokens` minus that of the best path of any text.

    Shapes:
        log_probs: (T', V).
        returns: (T',), at most 0; 0 where both paths agree.
    """
    path = torch.full((len(log_probs),), BLANK_ID)
    for token, span in zip(tokens, spans, strict=True):
        path[span.start : span.end] = token
    return log_probs.gather(1, path[:, None])[:, 0] - log_probs.max(dim=-1).values
