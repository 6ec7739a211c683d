"""Log-probabilities of batches of texts under a neural language model."""

import torch.nn.functional as F
from torch import Tensor

from asr.interfaces import BOUNDARY_ID, TokenModel
from asr.lengths import padding_mask


def text_log_probs(model: TokenModel, tokens: Tensor, token_lengths: Tensor) -> Tensor:
    """Compute log p(tokens, end) of each text, natural logarithm, (B,); arguments as in `token_log_probs`."""
    return token_log_probs(model, tokens, token_lengths).sum(dim=1)


def token_log_probs(model: TokenModel, tokens: Tensor, token_lengths: Tensor) -> Tensor:
    """Compute log p of each token and of the end of each text, natural logarithm.

    Args:
        model: a language model.
        tokens: (B, U); padding may have any value.
        token_lengths: (B,).

    Returns:
        (B, U + 1) log-probabilities of the tokens and the end; 0 in the padding.
    """
    padding = padding_mask(token_lengths, tokens.shape[1])
    padded = F.pad(tokens.masked_fill(padding, BOUNDARY_ID), (1, 1), value=BOUNDARY_ID)  # (B, U + 2)
    log_probs, _ = model(padded[:, :-1], model.initial_state(len(tokens)))
    of_tokens = log_probs.gather(2, padded[:, 1:, None])[:, :, 0]
    return of_tokens.masked_fill(padding_mask(token_lengths + 1, tokens.shape[1] + 1), 0.0)
