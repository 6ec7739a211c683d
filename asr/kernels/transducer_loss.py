"""The transducer's loss: the negative logarithm of the total probability of all alignments of tokens and frames."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.interfaces import BLANK_ID
from asr.kernels.choice import wants_plain
from asr.kernels.native import torchaudio_functions
from asr.lengths import padding_mask

MAX_NUMBERS = 2**31 - 1  # maximum number of logits, because torchaudio's index has 32 bits
NEVER = -1e30  # log-probability of an impossible path; finite, so that gradients are finite


def transducer_loss(logits: Tensor, tokens: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
    """Compute -log p(tokens) of each utterance; infinite for an utterance without frames.

    *Source*: Graves 2012, arXiv:1211.3711, section 2.4: each frame emits any number of tokens, then a blank.

    Args:
        logits: (B, T', U + 1, V); the logits at [b, t, u] belong to frame t after u tokens.
        tokens: (B, U).
        lengths: number of frames of each utterance, (B,).
        token_lengths: (B,).

    Returns:
        (B,), at least in float32. Padded frames and tokens have no effect, whatever they contain.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if logits.shape[1] == 0:
        return logits.new_full((len(logits),), math.inf)
    tokens = tokens.masked_fill(padding_mask(token_lengths, tokens.shape[1]), BLANK_ID)
    form = transducer_loss_plainly if wants_plain() or not _torchaudio_can(logits) else transducer_loss_by_torchaudio
    loss = form(logits, tokens, lengths.clamp(min=1), token_lengths)
    return loss.masked_fill(lengths == 0, math.inf)


def transducer_loss_plainly(logits: Tensor, tokens: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
    """Use the forward variables (equation 16), diagonal by diagonal: frame t after u tokens is on diagonal t + u."""
    num_frames, num_columns = logits.shape[1:3]
    padding = padding_mask(lengths, num_frames)[:, :, None] | padding_mask(token_lengths + 1, num_columns)[:, None]
    log_probs = logits.masked_fill(padding[..., None], 0.0).log_softmax(dim=-1)
    following = F.pad(tokens, (0, 1), value=BLANK_ID)[:, None, :, None].expand(-1, num_frames, -1, 1)
    blank_log_probs, token_log_probs = (
        log_probs[..., BLANK_ID],
        log_probs.gather(3, following)[..., 0],
    )  # (B, T', U + 1)
    column = torch.arange(num_columns, device=logits.device)
    frame = torch.arange(num_frames + num_columns - 1, device=logits.device)[:, None] - column  # (N, U + 1)
    frame = frame.clamp(0, num_frames - 1)  # no complete path uses cells outside the frames
    stays, moves = (x[:, frame, column].unbind(dim=1) for x in (blank_log_probs, token_log_probs))  # (B, U + 1) each
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
    """Use torchaudio's loss, which requires int32 and tensors cut to the longest utterance."""
    num_frames, num_tokens = int(lengths.max()), int(token_lengths.max())
    functions = torchaudio_functions()
    assert functions is not None
    loss: Tensor = functions.rnnt_loss(
        logits[:, :num_frames, : num_tokens + 1].contiguous(),
        tokens[:, :num_tokens].int().contiguous(),
        lengths.int(),
        token_lengths.int(),
        blank=BLANK_ID,
        reduction="none",
    )
    return loss


def _torchaudio_can(logits: Tensor) -> bool:
    """Whether torchaudio has this loss, and accepts these logits."""
    has_loss = hasattr(torchaudio_functions(), "rnnt_loss")
    return has_loss and logits.dtype == torch.float32 and logits.numel() <= MAX_NUMBERS
