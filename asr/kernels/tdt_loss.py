"""The loss of the token-and-duration transducer; its exact gradient needs one more tensor of the logits' size."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from asr.interfaces import BLANK_ID
from asr.kernels.choice import exact
from asr.lengths import padding_mask

NEVER = -1e30  # log-probability of an impossible arc; finite, so that differences are not NaN


def tdt_loss(
    logits: Tensor,
    tokens: Tensor,
    lengths: Tensor,
    token_lengths: Tensor,
    durations: Sequence[int],
    sigma: float = 0.0,
) -> Tensor:
    """Compute -log p(tokens) of each utterance; infinite if no path spells the tokens in the frames.

    A path starts at frame 0. Each arc emits a token or a blank and advances by a duration; a blank advances by at
    least one frame. The last arc is a blank that ends exactly at frame T'; no token ends there.

    *Source*: Xu et al. 2023, arXiv:2304.06795, sections 3.1 (the recursion) and 3.3 (sigma).

    Args:
        logits: (B, T', U + 1, V + D), V of tokens and D of durations, which are normalised separately. The logits at
            [b, t, u] belong to frame t after u tokens.
        tokens: (B, U).
        lengths: number of frames of each utterance, (B,).
        token_lengths: (B,).
        durations: distinct durations in frames, (D,).
        sigma: subtracted from the log-probability of each token and blank, which favours paths of few, long arcs.

    Returns:
        (B,), at least in float32. Padded frames and tokens have no effect, whatever they contain.
    """
    if logits.shape[1] == 0:
        return logits.new_full((len(logits),), math.inf, dtype=torch.promote_types(logits.dtype, torch.float32))
    tokens = tokens.masked_fill(padding_mask(token_lengths, tokens.shape[1]), BLANK_ID)
    loss: Tensor = _TDTLoss.apply(logits, tokens, lengths, token_lengths, tuple(durations), sigma)
    return loss


class _TDTLoss(torch.autograd.Function):
    """The loss; its gradient in each cell is the softmax times the cell's posterior, minus the arcs' posteriors."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        tokens: Tensor,
        lengths: Tensor,
        token_lengths: Tensor,
        durations: tuple[int, ...],
        sigma: float,
    ) -> Tensor:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        num_tokens = logits.shape[-1] - len(durations)
        following = F.pad(tokens, (0, 1), value=BLANK_ID)[:, None, :, None].expand(-1, logits.shape[1], -1, 1)
        token_logits, duration_logits = logits.to(dtype).split([num_tokens, len(durations)], dim=-1)
        total = token_logits.logsumexp(dim=-1)  # (B, T', U + 1)
        blank = token_logits[..., BLANK_ID] - total - sigma
        token = token_logits.gather(3, following)[..., 0] - total - sigma
        duration = duration_logits.log_softmax(dim=-1)  # (B, T', U + 1, D)
        widest = torch.promote_types(dtype, exact(logits.device))
        blank, token, duration = blank.to(widest), token.to(widest), duration.to(widest)
        log_prob, posteriors = _paths(blank, token, duration, lengths, token_lengths, durations)
        ctx.save_for_backward(logits, following, total, *(table.to(dtype) for table in posteriors))
        ctx.num_tokens = num_tokens
        columns = padding_mask(token_lengths + 1, logits.shape[2])
        ctx.padding = padding_mask(lengths, logits.shape[1])[:, :, None] | columns[:, None]  # (B, T', U + 1)
        return torch.where(log_prob > NEVER / 2, -log_prob, math.inf).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        logits, following, total, blank, token, duration = ctx.saved_tensors
        visited = (blank + token)[..., None]  # (B, T', U + 1, 1)
        gradients = logits.to(total.dtype, copy=True)
        token_gradients, duration_gradients = gradients.split([ctx.num_tokens, duration.shape[-1]], dim=-1)
        token_gradients.sub_(total[..., None]).exp_().mul_(visited)
        token_gradients[..., BLANK_ID] -= blank
        token_gradients.scatter_add_(3, following, -token[..., None])
        duration_gradients.copy_(duration_gradients.softmax(dim=-1) * visited - duration)
        gradients.masked_fill_(ctx.padding[..., None], 0.0)
        gradients.mul_(gradient.to(total.dtype)[:, None, None, None])
        return gradients.to(logits.dtype), None, None, None, None, None


class Posteriors(NamedTuple):
    """Probabilities that the path of an utterance takes an arc, given its tokens.

    Args:
        blank: probability of a blank with any duration from each cell, (B, T', U + 1).
        token: probability of the next token with any duration, (B, T', U + 1).
        duration: probability of each duration, with a blank or the token, (B, T', U + 1, D).
    """

    blank: Tensor
    token: Tensor
    duration: Tensor


class _Lattice(NamedTuple):
    """All arcs between cells; the cell of frame t after u tokens is in column u, on diagonal t + u of N diagonals.

    A blank of duration d leads to diagonal t + u + d, a token to t + u + d + 1. So every arc leads to a later diagonal,
    and all cells of a diagonal are computed in parallel.

    Args:
        arcs: log-probabilities, (N, K, B, U + 1). Dimension N is the diagonal on which an arc begins, dimension U + 1
            the column in which it ends. The K kinds of arcs are blanks of each duration except 0, then tokens of each
            duration.
        steps: number of diagonals by which each kind of arc advances, (K,).
        num_blanks: number of kinds of arcs that are blanks.
        ends: diagonal of the last cell of each utterance, (B,); its column is `token_lengths`.
        token_lengths: (B,).
    """

    arcs: Tensor
    steps: Tensor
    num_blanks: int
    ends: Tensor
    token_lengths: Tensor


def _paths(
    blank: Tensor, token: Tensor, duration: Tensor, lengths: Tensor, token_lengths: Tensor, durations: tuple[int, ...]
) -> tuple[Tensor, Posteriors]:
    """Sum over all paths.

    Args:
        blank: log-probability of a blank in each cell, (B, T', U + 1).
        token: log-probability of the next token, (B, T', U + 1).
        duration: log-probability of each duration, (B, T', U + 1, D).
        lengths: (B,).
        token_lengths: (B,).
        durations: (D,).

    Returns:
        Log-probability of the tokens of each utterance, (B,), and the posteriors.
    """
    num_frames, num_columns = blank.shape[1:]
    lattice = _lattice(blank, token, duration, lengths, token_lengths, durations)
    alphas, taken = _forward(lattice)
    row = torch.arange(len(lengths), device=lengths.device)
    log_prob = alphas[lattice.ends, row, token_lengths].masked_fill(lengths == 0, NEVER)
    _backward(lattice, taken)
    column = torch.arange(num_columns, device=lengths.device)
    cell = torch.arange(num_frames, device=lengths.device)[:, None] + column  # (T', U + 1)
    num_blanks = lattice.num_blanks
    blanks = taken[cell, :num_blanks, :, column].permute(3, 0, 1, 2)  # (B, T', U + 1, K)
    taken = F.pad(taken[:, num_blanks:, :, 1:], (0, 1))  # arcs of tokens, by the column in which they begin
    arcs = taken[cell, :, :, column].permute(3, 0, 1, 2).contiguous()  # (B, T', U + 1, D)
    token_posteriors = arcs.sum(dim=-1)
    arcs[..., [number for number, frames in enumerate(durations) if frames > 0]] += blanks
    return log_prob, Posteriors(blanks.sum(dim=-1), token_posteriors, arcs)


def _lattice(
    blank: Tensor, token: Tensor, duration: Tensor, lengths: Tensor, token_lengths: Tensor, durations: tuple[int, ...]
) -> _Lattice:
    """Arrange the arcs; arguments as for `_paths`. Arcs that no path can take have the log-probability NEVER."""
    (num_frames, num_columns), device = blank.shape[1:], blank.device
    frames = torch.tensor(durations, device=device)  # (D,)
    column = torch.arange(num_columns, device=device)[:, None]  # (U + 1, 1)
    left = (lengths[:, None] - torch.arange(num_frames, device=device))[:, :, None, None]  # (B, T', 1, 1)
    may_blank = (frames > 0) & (frames <= left) & (column <= token_lengths[:, None, None, None])
    may_write = (frames < left) & (column < token_lengths[:, None, None, None])
    blanks = (blank[..., None] + duration).masked_fill(~may_blank, NEVER)[..., frames > 0]
    tokens = (token[..., None] + duration).masked_fill(~may_write, NEVER)
    tokens = F.pad(tokens, (0, 0, 1, 0), value=NEVER)[:, :, :-1]  # move each arc to the column in which it ends
    diagonal = torch.arange(num_frames + num_columns, device=device)[:, None]
    arcs = []
    for kind, begins in ((blanks, column[:, 0]), (tokens, column[:, 0] - 1)):
        frame = diagonal - begins  # (N, U + 1)
        outside = ((frame < 0) | (frame >= num_frames))[:, None, None]
        laid = kind[:, frame.clamp(0, num_frames - 1), column[:, 0]]  # (B, N, U + 1, K)
        arcs.append(laid.permute(1, 3, 0, 2).masked_fill(outside, NEVER))
    steps = torch.cat([frames[frames > 0], frames + 1])
    num_blanks = blanks.shape[-1]
    return _Lattice(torch.cat(arcs, dim=1), steps, num_blanks, lengths + token_lengths, token_lengths)


def _forward(lattice: _Lattice) -> tuple[Tensor, Tensor]:
    """Sum the paths to each cell.

    Returns:
        Logarithms of the sums, (N, B, U + 1), and the share of each arc in the sum of the cell where it ends, (N, K,
        B, U + 1).
    """
    arcs, steps, num_blanks = lattice.arcs, lattice.steps, lattice.num_blanks
    num_diagonals, num_kinds = arcs.shape[:2]
    longest, kind = int(steps.max()), torch.arange(num_kinds, device=arcs.device)
    sums = F.pad(arcs, (0,) * 6 + (longest, 0), value=NEVER)  # row n + longest has the arcs of diagonal n
    alphas = arcs.new_full((num_diagonals + longest, *arcs.shape[2:]), NEVER)
    alphas[0, :, 0] = 0.0
    for number in range(num_diagonals):
        if number:
            alphas[number] = sums[number + longest - steps, kind].logsumexp(dim=0)  # (B, U + 1)
        here = sums[number + longest]
        here[:num_blanks] += alphas[number]
        here[num_blanks:, :, 1:] += alphas[number, :, :-1]
    ends = torch.arange(num_diagonals, device=arcs.device)[:, None] + steps  # (N, K)
    return alphas, (sums[longest:] - alphas[ends]).exp_()


def _backward(lattice: _Lattice, shares: Tensor) -> None:
    """Replace the shares from `_forward`, in place, by the posteriors of the arcs.

    The posterior of an arc is its share in the sum of the cell where it ends, times the posterior of this cell.
    """
    steps, num_blanks = lattice.steps, lattice.num_blanks
    num_diagonals, _, batch, num_columns = shares.shape
    visited = shares.new_zeros(num_diagonals + int(steps.max()), batch, num_columns)
    row = torch.arange(batch, device=shares.device)
    visited[lattice.ends, row, lattice.token_lengths] = 1.0
    for number in reversed(range(num_diagonals)):
        taken = shares[number].mul_(visited[number + steps])
        visited[number] += taken[:num_blanks].sum(dim=0)
        visited[number, :, :-1] += taken[num_blanks:, :, 1:].sum(dim=0)
