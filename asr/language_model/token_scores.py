"""Log-probabilities of whole texts by a neural language model, a batch at once."""

import torch.nn.functional as F
from torch import Tensor

from asr.interfaces import BOUNDARY_ID, TokenModel
from asr.lengths import padding_mask


def text_log_probs(model: TokenModel, tokens: Tensor, token_lengths: Tensor) -> Tensor:
    """Compute log p(tokens, end) of each text, natural logarithm.

    Args:
        model: a language model.
        tokens: (B, U), whatever stands in the padding.
        token_lengths: (B,).

    Returns:
        (B,).
    """
    padding = padding_mask(token_lengths, tokens.shape[1])
    padded = F.pad(tokens.masked_fill(padding, BOUNDARY_ID), (1, 1), value=BOUNDARY_ID)  # (B, U + 2)
    log_probs, _ = model(padded[:, :-1], model.initial_state(len(tokens)))
    of_targets = log_probs.gather(2, padded[:, 1:, None])[:, :, 0]  # (B, U + 1)
    return of_targets.masked_fill(padding_mask(token_lengths + 1, tokens.shape[1] + 1), 0.0).sum(dim=1)
