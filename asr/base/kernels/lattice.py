"""The lattice of a transducer: the sum over all of its paths, and the probability of each arc."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

NEVER = -1e30  # log-probability of an impossible arc; finite, so that differences are not NaN


class Arc(NamedTuple):
    """A kind of arc: the numbers of frames and columns by which it advances."""

    frames: int
    columns: int


class Lattice(NamedTuple):
    """Cells (frame, column), column u after u tokens, and arcs between them.

    A path begins in column 0 of frame 0, and ends in column `token_lengths` of frame T', the one after the last. Its
    last arc is a blank; no token ends in frame T'.

    Args:
        weights: log-probabilities of arcs by the cell in which they begin, (B, T', U + 1, K).
        arcs: the K kinds of arcs: first blanks, which advance by no column, then tokens, which advance by one.
        lengths: T' of each utterance, (B,).
        token_lengths: (B,).
    """

    weights: Tensor
    arcs: tuple[Arc, ...]
    lengths: Tensor
    token_lengths: Tensor


def paths(lattice: Lattice) -> tuple[Tensor, Tensor]:
    """Sum over all paths, diagonal by diagonal: cells with the same t + u in parallel, as arcs lead to later diagonals.

    Shares and posteriors of arcs have the dimensions (N, K, B, U + 1): the diagonal in which an arc begins, its kind,
    and the column in which it ends.

    Returns:
        Logarithms of the sums, (B,), at most NEVER / 2 without a path; and the probability that a path takes each arc,
        (B, T', U + 1, K). Arcs in padded frames and columns have none, whatever their weights are.
    """
    weights, arcs, lengths, token_lengths = lattice
    (num_frames, num_columns), device = weights.shape[1:3], weights.device
    num_blanks = sum(arc.columns == 0 for arc in arcs)
    frames, columns = (torch.tensor(advances, device=device) for advances in zip(*arcs, strict=True))  # (K,)
    column = torch.arange(num_columns, device=device)
    left = (lengths[:, None] - torch.arange(num_frames, device=device))[:, :, None, None]  # (B, T', 1, 1)
    exists = (frames + columns <= left) & (column[:, None] + columns <= token_lengths[:, None, None, None])
    blanks, tokens = weights.masked_fill(~exists, NEVER).tensor_split([num_blanks], dim=-1)
    tokens = F.pad(tokens, (0, 0, 1, 0), value=NEVER)[:, :, :-1]  # move each arc to the column in which it ends
    diagonal = torch.arange(num_frames + num_columns, device=device)[:, None]
    laid = []
    for kind, begins in ((blanks, column), (tokens, column - 1)):
        frame = diagonal - begins  # (N, U + 1)
        outside = ((frame < 0) | (frame >= num_frames))[:, None, None]
        of_frames = kind[:, frame.clamp(0, num_frames - 1), column]  # (B, N, U + 1, K)
        laid.append(of_frames.permute(1, 3, 0, 2).masked_fill(outside, NEVER))
    steps, end = frames + columns, (lengths + token_lengths, torch.arange(len(lengths), device=device), token_lengths)
    longest = max(sum(arc) for arc in arcs)
    alphas, shares = _forward(torch.cat(laid, dim=1), steps, longest, num_blanks)
    posteriors = _backward(shares, torch.zeros_like(alphas).index_put(end, alphas.new_ones(())), steps, num_blanks)
    cell = torch.arange(num_frames, device=device)[:, None] + column  # (T', U + 1)
    by_column = posteriors[:, :num_blanks], F.pad(posteriors[:, num_blanks:, :, 1:], (0, 1))  # in which they begin
    return alphas[end], torch.cat([kind[cell, :, :, column].permute(3, 0, 1, 2) for kind in by_column], dim=-1)


def _forward(arcs: Tensor, steps: Tensor, longest: int, num_blanks: int) -> tuple[Tensor, Tensor]:
    """Sum the paths to each cell.

    Args:
        arcs: log-probabilities, (N, K, B, U + 1).
        steps: number of diagonals by which each kind of arc advances, (K,).
        longest: maximum of steps.
        num_blanks: number of kinds of arcs that are blanks.

    Returns:
        Logarithms of the sums, (N + longest, B, U + 1), and the share of each arc in the sum of the cell where it ends,
        (N, K, B, U + 1).
    """
    num_diagonals, num_kinds = arcs.shape[:2]
    kind = torch.arange(num_kinds, device=arcs.device)
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


def _backward(shares: Tensor, visited: Tensor, steps: Tensor, num_blanks: int) -> Tensor:
    """Replace the shares from `_forward`, in place, by the posteriors of the arcs.

    The posterior of an arc is its share in the sum of the cell where it ends, times the posterior of this cell.
    `visited` has the posteriors of cells, (N + longest, B, U + 1); at first those of the last cells, 1, and zeros.
    """
    for number in reversed(range(len(shares))):
        taken = shares[number].mul_(visited[number + steps])
        visited[number] += taken[:num_blanks].sum(dim=0)
        visited[number, :, :-1] += taken[num_blanks:, :, 1:].sum(dim=0)
    return shares
