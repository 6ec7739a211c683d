"""The transducer's loss, with or without durations: -log of the probability of all alignments of tokens and frames."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from asr.base.kernels.choice import exact
from asr.base.kernels.lattice import NEVER, Arc, Lattice, paths
from asr.base.kernels.native import triton_lattice
from asr.interfaces import BLANK_ID
from asr.lengths import padding_mask


def transducer_loss(
    logits: Tensor,
    tokens: Tensor,
    lengths: Tensor,
    token_lengths: Tensor,
    durations: Sequence[int] = (),
    sigma: float = 0.0,
    fast_emit: float = 0.0,
) -> Tensor:
    """Compute -log p(tokens) of each utterance; infinite if no path spells the tokens in the frames.

    A path starts at frame 0. Each arc emits a token or a blank and advances by a duration; a blank advances by at
    least one frame. The last arc is a blank that ends exactly at frame T'; no token ends there.

    *Source*: Graves 2012, arXiv:1211.3711, section 2.4; with durations Xu et al. 2023, arXiv:2304.06795, sections 3.1
    (the recursion) and 3.3 (sigma); FastEmit: Yu et al. 2021, arXiv:2010.11148.

    Args:
        logits: (B, T', U + 1, V + D), V of tokens and D of durations, which are normalised separately. The logits at
            [b, t, u] belong to frame t after u tokens.
        tokens: (B, U).
        lengths: number of frames of each utterance, (B,).
        token_lengths: (B,).
        durations: possible durations in frames, in ascending order from 0, (D,). Empty: a blank lasts one frame, and a
            token none.
        sigma: subtracted from the log-probability of each token and blank, which favours paths of few, long arcs.
        fast_emit: lambda of FastEmit, which favours early tokens: the gradient with respect to the log-probability of
            each token is multiplied by 1 + fast_emit, that of blanks and the loss do not change. 0 with durations.

    Returns:
        (B,), at least in float32. Padded frames and tokens have no effect, whatever they contain. The gradient is
        exact but for `fast_emit`, and needs one more tensor of the logits' size.
    """
    if logits.shape[1] == 0:
        return logits.new_full((len(logits),), math.inf, dtype=torch.promote_types(logits.dtype, torch.float32))
    tokens = tokens.masked_fill(padding_mask(token_lengths, tokens.shape[1]), BLANK_ID)
    loss: Tensor = _LatticeLoss.apply(logits, tokens, lengths, token_lengths, tuple(durations), sigma, fast_emit)
    return loss


class _LatticeLoss(torch.autograd.Function):
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
        fast_emit: float,
    ) -> Tensor:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        blanks = [Arc(frames, 0) for frames in durations or (1,) if frames > 0]
        moves = [Arc(frames, 1) for frames in durations or (0,)]
        following = F.pad(tokens, (0, 1), value=BLANK_ID)[:, None, :, None].expand(-1, logits.shape[1], -1, 1)
        weights, total = _weights(logits, following, len(durations), len(blanks), sigma)
        lattice = Lattice(weights, (*blanks, *moves), lengths, token_lengths)
        kernels = triton_lattice(logits.device)
        log_prob, posteriors = paths(lattice) if kernels is None else kernels.transducer_paths(lattice)
        blank, token = posteriors.tensor_split([len(blanks)], dim=-1)
        duration = token[..., : len(durations)].clone()
        if durations:
            duration[..., -len(blanks) :] += blank
        tables = blank.sum(dim=-1, keepdim=True), token.sum(dim=-1, keepdim=True).mul_(1 + fast_emit), duration
        columns = padding_mask(token_lengths + 1, logits.shape[2])
        padding = padding_mask(lengths, logits.shape[1])[:, :, None] | columns[:, None]  # (B, T', U + 1)
        ctx.save_for_backward(logits, following, total, padding, *(table.to(dtype) for table in tables))
        impossible = (log_prob <= NEVER / 2) | (lengths == 0)
        return -log_prob.masked_fill(impossible, -math.inf).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        logits, following, total, padding, blank, token, duration = ctx.saved_tensors
        visited = blank + token
        gradients = logits.to(total.dtype, copy=True)
        token_gradients, duration_gradients = gradients.tensor_split([logits.shape[-1] - duration.shape[-1]], dim=-1)
        token_gradients.sub_(total).exp_().mul_(visited)
        token_gradients[..., BLANK_ID] -= blank[..., 0]
        token_gradients.scatter_add_(3, following, -token)
        duration_gradients.copy_(duration_gradients.softmax(dim=-1) * visited - duration)
        gradients.masked_fill_(padding[..., None], 0.0)
        gradients.mul_(gradient.to(total.dtype)[:, None, None, None])
        return gradients.to(logits.dtype), None, None, None, None, None, None


def _weights(
    logits: Tensor, following: Tensor, num_durations: int, num_blanks: int, sigma: float
) -> tuple[Tensor, Tensor]:
    """Compute the log-probabilities of the arcs, (B, T', U + 1, K), in the widest type of the device.

    Args:
        logits: (B, T', U + 1, V + D).
        following: the token that follows in each cell, (B, T', U + 1, 1).
        num_durations: D.
        num_blanks: number of durations of blanks.
        sigma: as in `transducer_loss`.

    Returns:
        The log-probabilities, and the normaliser of the tokens' logits, (B, T', U + 1, 1).
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    widest = torch.promote_types(dtype, exact(logits.device))
    token_logits, duration_logits = logits.tensor_split([logits.shape[-1] - num_durations], dim=-1)
    largest = token_logits.amax(dim=-1, keepdim=True).to(dtype)
    total = largest + (token_logits - largest).exp_().sum(dim=-1, keepdim=True).log_()  # logsumexp hides its memory
    blank = (token_logits[..., BLANK_ID, None] - total - sigma).to(widest)
    token = (token_logits.gather(3, following) - total - sigma).to(widest)
    if num_durations:
        duration = duration_logits.log_softmax(dim=-1, dtype=dtype).to(widest)
        blank, token = blank + duration[..., -num_blanks:], token + duration
    return torch.cat([blank, token], dim=-1), total
