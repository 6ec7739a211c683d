"""Sums over the paths of a lattice in one launch of a Triton kernel, without a wait: one program per utterance.

A program computes the cells of a level in parallel, and waits for all its threads between levels, because each reads
what others wrote. Logarithms are float64, because those of long utterances are large; ratios, which are not, float32.
Triton is needed to import this module.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from asr.base.kernels.lattice import NEVER, Arc, Lattice

IMPOSSIBLE = tl.constexpr(NEVER)


def transducer_paths(lattice: Lattice) -> tuple[Tensor, Tensor]:
    """Compute what `lattice.paths` returns."""
    weights, arcs, lengths, token_lengths = lattice
    posteriors = torch.zeros_like(weights, memory_format=torch.contiguous_format)
    num_blanks = sum(arc.columns == 0 for arc in arcs)
    log_prob = _launch(
        weights, arcs, lengths, token_lengths, lengths, posteriors, slope=1, num_starts=1, num_last=num_blanks
    )
    return log_prob, posteriors


def ctc_paths(emissions: Tensor, doors: Tensor, lengths: Tensor, last_states: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over all paths of CTC.

    Args:
        emissions: log-probability of each state's token in each frame, (B, T', S), at least float32.
        doors: whether the state may follow that two before it, (B, S).
        lengths: T' of each utterance, (B,).
        last_states: index of the last state, (B,).

    Returns:
        Logarithms of the sums, (B,), -inf without a path; and the probability of each state in each frame, (B, T', S).
    """
    posteriors = torch.zeros_like(emissions, memory_format=torch.contiguous_format)
    weights = emissions[..., None].expand(-1, -1, -1, 3)
    arcs = Arc(1, 0), Arc(1, 1), Arc(1, 2)
    program = {"slope": 0, "num_starts": 2, "num_last": len(arcs)}
    return _launch(weights, arcs, lengths, last_states, doors, posteriors, **program), posteriors


def _launch(
    weights: Tensor,
    arcs: tuple[Arc, ...],
    lengths: Tensor,
    last_columns: Tensor,
    doors: Tensor,
    posteriors: Tensor,
    **program: int,
) -> Tensor:
    """Fill the posteriors, and return the logarithms of the sums, (B,), in float64."""
    batch, num_frames, num_columns, _ = weights.shape
    alphas = weights.new_empty((batch, num_frames + 1, num_columns), dtype=torch.float64)
    log_prob = alphas.new_empty(batch)
    tables = (table.to(weights.device).contiguous() for table in (doors, lengths, last_columns))
    block = triton.next_power_of_2(num_columns)
    with torch.cuda.device_of(weights):  # Triton launches on the current device
        _sum_paths[(batch,)](
            weights,
            *weights.stride(),
            *tables,
            alphas,
            posteriors,
            log_prob,
            num_frames,
            num_columns,
            frames=tuple(arc.frames for arc in arcs),
            columns=tuple(arc.columns for arc in arcs),
            by_cell=posteriors.dim() == 3,
            block=block,
            num_warps=min(max(block // 64, 1), 16),
            **program,
        )
    return log_prob


@triton.jit
def _add(largest, ratio, x):  # type: ignore[no-untyped-def]
    """Add exp(x) to a sum, which is exp(largest) * ratio; NaN stays."""
    new = tl.where(x > largest, x, largest)
    return new, ratio * tl.exp((largest - new).to(tl.float32)) + tl.exp((x - new).to(tl.float32))


@triton.jit
def _log_weight(pointer, mask):  # type: ignore[no-untyped-def]
    """Load log-probabilities as float64; -inf becomes IMPOSSIBLE, so that differences are not NaN."""
    weight = tl.load(pointer, mask=mask, other=IMPOSSIBLE).to(tl.float64)
    return tl.where(weight < IMPOSSIBLE, IMPOSSIBLE, weight)


# Numbers that differ between batches: no program of its own for those that are 1 or multiples of 16.
@triton.jit(
    do_not_specialize=["by_utterance", "by_frame", "by_column", "by_kind", "num_frames", "num_columns"],
    do_not_specialize_on_alignment=["weights", "doors", "lengths", "last_columns", "alphas", "posteriors", "log_probs"],
)
def _sum_paths(  # type: ignore[no-untyped-def]
    weights,
    by_utterance,
    by_frame,
    by_column,
    by_kind,
    doors,
    lengths,
    last_columns,
    alphas,
    posteriors,
    log_probs,
    num_frames,
    num_columns,
    frames: tl.constexpr,
    columns: tl.constexpr,
    slope: tl.constexpr,
    num_starts: tl.constexpr,
    num_last: tl.constexpr,
    by_cell: tl.constexpr,
    block: tl.constexpr,
):
    """Fill alphas (B, T' + 1, C), posteriors (B, T', C, K), or (B, T', C) if by_cell, and log_probs (B,).

    Cells of equal frame + slope * column form a level. Paths begin in one of num_starts columns of frame 0, and end in
    the last column of frame T'; only the first num_last kinds of arcs end in frame T'. An arc of two columns ends only
    in columns with a door.
    """
    utterance = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block).to(tl.int64)
    length = tl.load(lengths + utterance).to(tl.int64)
    last_column = tl.load(last_columns + utterance).to(tl.int64)
    weights += utterance * by_utterance
    doors += utterance * num_columns
    alphas += utterance * (num_frames + 1) * num_columns
    num_kinds: tl.constexpr = len(frames)
    posteriors += utterance * num_frames * num_columns * (1 if by_cell else num_kinds)
    last_level = length + slope * last_column

    # Forward: the sums of all paths to each cell.
    level = length * 0
    while level <= last_level:
        frame = level - slope * column
        is_cell = (frame >= 0) & (frame <= length) & (column <= last_column)
        is_start = (frame == 0) & (column < num_starts)
        alpha, ratio = (
            tl.where(is_start, 0.0, tl.full([block], IMPOSSIBLE, tl.float64)),
            tl.full([block], 1.0, tl.float32),
        )
        for kind in tl.static_range(num_kinds):
            before, left = frame - frames[kind], column - columns[kind]
            exists = is_cell & (before >= 0) & (before < length) & (left >= 0)
            if kind >= num_last:
                exists = exists & (frame < length)
            if columns[kind] == 2:
                exists = exists & (tl.load(doors + column, mask=exists, other=0) != 0)
            arc = _log_weight(weights + before * by_frame + left * by_column + kind * by_kind, exists)
            arc += tl.load(alphas + before * num_columns + left, mask=exists, other=IMPOSSIBLE)
            alpha, ratio = _add(alpha, ratio, arc)
        alpha += tl.log(ratio.to(tl.float64))
        tl.store(alphas + frame * num_columns + column, alpha, mask=is_cell)
        tl.debug_barrier()
        level += 1
    total = tl.load(alphas + length * num_columns + last_column)
    tl.store(log_probs + utterance, tl.where(total <= IMPOSSIBLE / 2, float("-inf"), total))

    # Backward: the sums of all paths from each cell to the end replace those to the cell.
    level = last_level
    while level >= 0:
        frame = level - slope * column
        is_cell = (frame >= 0) & (frame <= length) & (column <= last_column)
        alpha = tl.load(alphas + frame * num_columns + column, mask=is_cell, other=IMPOSSIBLE)
        tl.debug_barrier()  # all have read their alpha, and the level after this one is complete
        is_end = (frame == length) & (column == last_column)
        beta, ratio = tl.where(is_end, 0.0, tl.full([block], IMPOSSIBLE, tl.float64)), tl.full([block], 1.0, tl.float32)
        has_frame = is_cell & (frame < length)
        cell = frame * num_columns + column
        for kind in tl.static_range(num_kinds):
            after, right = frame + frames[kind], column + columns[kind]
            exists = has_frame & (after <= length) & (right <= last_column)
            if kind >= num_last:
                exists = exists & (after < length)
            if columns[kind] == 2:
                exists = exists & (tl.load(doors + right, mask=exists, other=0) != 0)
            arc = _log_weight(weights + frame * by_frame + column * by_column + kind * by_kind, exists)
            arc += tl.load(alphas + after * num_columns + right, mask=exists, other=IMPOSSIBLE)
            beta, ratio = _add(beta, ratio, arc)
            if not by_cell:
                posterior = tl.where(total <= IMPOSSIBLE / 2, 0.0, tl.exp((alpha + arc - total).to(tl.float32)))
                tl.store(posteriors + cell * num_kinds + kind, posterior, mask=has_frame)
        beta += tl.log(ratio.to(tl.float64))
        if by_cell:
            posterior = tl.where(total <= IMPOSSIBLE / 2, 0.0, tl.exp((alpha + beta - total).to(tl.float32)))
            tl.store(posteriors + cell, posterior, mask=has_frame)
        tl.store(alphas + cell, beta, mask=is_cell)
        level -= 1
