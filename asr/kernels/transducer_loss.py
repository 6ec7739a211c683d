"""The transducer's loss: the sum over all ways in which tokens and frames can take turns."""

import math

import torch
import torch.nn.functional as F
import torchaudio.functional
from torch import Tensor

from asr.interfaces import BLANK_ID
from asr.kernels.choice import wants_plain
from asr.lengths import padding_mask

MAX_NUMBERS = 2**31 - 1  # of the logits: torchaudio counts them in 32 bits
NEVER = -1e30  # the logarithm of nothing; finite, so that gradients are numbers


def transducer_loss(logits: Tensor, tokens: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
    """Compute -log p(tokens) of each utterance; infinite where there is no frame.

    *Source*: Graves 2012, arXiv:1211.3711, section 2.4: in each frame any number of tokens, then a blank.

    Args:
        logits: (B, T', U + 1, V); those at [b, t, u] are for what follows u tokens in frame t.
        tokens: (B, U).
        lengths: frames of each utterance, (B,).
        token_lengths: (B,).

    Returns:
        (B,), at least in float32. What stands in padded frames and tokens changes nothing.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if logits.shape[1] == 0:
        return logits.new_full((len(logits),), math.inf)
    tokens = tokens.masked_fill(padding_mask(token_lengths, tokens.shape[1]), BLANK_ID)
    form = transducer_loss_plainly if wants_plain() or not _torchaudio_can(logits) else transducer_loss_by_torchaudio
    loss = form(logits, tokens, lengths.clamp(min=1), token_lengths)
    return loss.masked_fill(lengths == 0, math.inf)


def transducer_loss_plainly(logits: Tensor, tokens: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
    """By the forward variables (equation 16), diagonal by diagonal: that of frame t and u tokens is in number t + u."""
    num_frames, num_columns = logits.shape[1:3]
    padding = padding_mask(lengths, num_frames)[:, :, None] | padding_mask(token_lengths + 1, num_columns)[:, None]
    log_probs = logits.masked_fill(padding[..., None], 0.0).log_softmax(dim=-1)
    following = F.pad(tokens, (0, 1), value=BLANK_ID)[:, None, :, None].expand(-1, num_frames, -1, 1)
    of_blank, of_token = log_probs[..., BLANK_ID], log_probs.gather(3, following)[..., 0]  # (B, T', U + 1)
    column = torch.arange(num_columns, device=logits.device)
    frame = torch.arange(num_frames + num_columns - 1, device=logits.device)[:, None] - column  # (N, U + 1)
    frame = frame.clamp(0, num_frames - 1)  # of cells that lie in none, no path leads back
    stays, moves = (x[:, frame, column].unbind(dim=1) for x in (of_blank, of_token))  # (B, U + 1) each
    alpha = torch.full_like(stays[0], NEVER).index_fill(1, column[:1], 0.0)
    alphas = [alpha]
    for stay, move in zip(stays[:-1], moves[:-1], strict=True):
        moved = F.pad((alpha + move)[:, :-1], (1, 0), value=NEVER)
        alpha = torch.logaddexp(alpha + stay, moved)
        alphas.append(alpha)
    row, last = torch.arange(len(logits), device=logits.device), lengths - 1
    end = torch.stack(alphas)[last + token_lengths, row, token_lengths]
    return -(end + log_probs[row, last, token_lengths, BLANK_ID])


def transducer_loss_by_torchaudio(logits: Tensor, tokens: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
    """By torchaudio, which wants no more frames and tokens than the longest utterance has, and integers of 32 bits."""
    num_frames, num_tokens = int(lengths.max()), int(token_lengths.max())
    loss: Tensor = torchaudio.functional.rnnt_loss(
        logits[:, :num_frames, : num_tokens + 1].contiguous(),
        tokens[:, :num_tokens].int().contiguous(),
        lengths.int(),
        token_lengths.int(),
        blank=BLANK_ID,
        reduction="none",
    )
    return loss


def _torchaudio_can(logits: Tensor) -> bool:
    """Whether it is there, and takes these."""
    there = hasattr(torchaudio.functional, "rnnt_loss")
    return there and logits.dtype == torch.float32 and logits.numel() <= MAX_NUMBERS
