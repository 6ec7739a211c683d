"""The CTC head: a distribution over tokens and blank for each encoder frame, and its loss."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.interfaces import BLANK_ID


class CTC(nn.Module):
    """Connectionist temporal classification.

    *Source*: Graves et al. 2006, "Connectionist Temporal Classification".

    Args:
        input_dim: D.
        vocab_size: V, blank included.
    """

    def __init__(self, input_dim: int, vocab_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_dim, vocab_size)

    def forward(self, encoder_out: Tensor) -> Tensor:
        """encoder_out (B, T', D) to log_probs (B, T', V), at least in float32 under autocast too."""
        logits = self.linear(encoder_out)
        return F.log_softmax(logits, dim=-1, dtype=None if logits.dtype.itemsize >= 4 else torch.float32)

    def losses(self, log_probs: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor) -> Tensor:
        """Compute -log p(tokens) of each utterance.

        Infinite where the tokens do not fit the frames (`min_frames`): nothing is hidden.

        Args:
            log_probs: (B, T', V).
            lengths: encoder_out_lengths, (B,).
            tokens: (B, U).
            token_lengths: (B,).

        Returns:
            (B,), not divided by anything.
        """
        return F.ctc_loss(log_probs.transpose(0, 1), tokens, lengths, token_lengths, blank=BLANK_ID, reduction="none")

    @staticmethod
    def min_frames(tokens: list[int]) -> int:
        """Fewest frames that can spell `tokens`: one each, and a blank between two that are the same."""
        return len(tokens) + sum(left == right for left, right in pairwise(tokens))
