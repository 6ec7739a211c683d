"""The CTC loss: torch's own, or that of a Triton kernel, which makes the program wait for nothing."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from asr.base.kernels.native import triton_lattice
from asr.interfaces import BLANK_ID, Targets
from asr.lengths import padding_mask


def ctc_loss(log_probs: Tensor, lengths: Tensor, targets: Targets) -> Tensor:
    """Compute -log p(tokens) of each utterance; infinite if no path spells the tokens in the frames.

    *Source*: Graves et al. 2006, "Connectionist Temporal Classification".

    Args:
        log_probs: (B, T', V).
        lengths: number of frames of each utterance, (B,).
        targets: tokens and token_lengths.

    Returns:
        (B,). Padded frames and tokens have no effect, whatever they contain.
    """
    tokens, token_lengths = targets["tokens"], targets["token_lengths"]
    kernels = triton_lattice(log_probs.device)
    if kernels is None or log_probs.dtype.itemsize < 4:
        by_frame = log_probs.transpose(0, 1)  # (T', B, V)
        return F.ctc_loss(by_frame, tokens, lengths, token_lengths, blank=BLANK_ID, reduction="none")
    loss: Tensor = _CTCLoss.apply(log_probs, tokens, lengths, token_lengths, kernels)
    return loss


class _CTCLoss(torch.autograd.Function):
    """The loss by the lattice's kernel; its gradient is minus the probability of each token in each frame."""

    @staticmethod
    def forward(
        ctx: Any, log_probs: Tensor, tokens: Tensor, lengths: Tensor, token_lengths: Tensor, kernels: Any
    ) -> Tensor:
        tokens = tokens.masked_fill(padding_mask(token_lengths, tokens.shape[1]), BLANK_ID)
        states = F.pad(F.pad(tokens[..., None], (1, 0), value=BLANK_ID).flatten(1), (0, 1), value=BLANK_ID)
        by_frame = states[:, None].expand(-1, log_probs.shape[1], -1)  # (B, T', S = 2 U + 1)
        doors = F.pad(states[:, 2:] != states[:, :-2], (2, 0), value=False)  # may be entered from two states before
        emissions = log_probs.gather(2, by_frame)
        log_prob, posteriors = kernels.ctc_paths(emissions, doors, lengths, 2 * token_lengths)
        ctx.save_for_backward(posteriors, by_frame)
        ctx.num_tokens = log_probs.shape[2]
        return -log_prob.to(log_probs.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        posteriors, by_frame = ctx.saved_tensors
        gradients = posteriors.new_zeros((*posteriors.shape[:2], ctx.num_tokens))
        gradients.scatter_add_(2, by_frame, posteriors * -gradient[:, None, None])
        return gradients, None, None, None, None
