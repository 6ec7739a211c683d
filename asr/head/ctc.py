"""The CTC head: a distribution over tokens and blank for each encoder frame, and its loss."""

from operator import eq

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.interfaces import BLANK_ID, NO_TAPS, Encoded
from asr.lengths import Lengths


class CTC(nn.Module):
    """Connectionist temporal classification.

    *Source*: Graves et al. 2006, "Connectionist Temporal Classification".

    Args:
        output_dim: D.
        num_blocks: of the encoder.
        vocab_size: V, blank included.
    """

    loss_names = ()
    taps = NO_TAPS
    views = 1

    def __init__(self, output_dim: int, num_blocks: int, vocab_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(output_dim, vocab_size)

    @property
    def frame_head(self) -> "CTC":
        """Itself."""
        return self

    def log_probs(self, encoder_out: Tensor) -> Tensor:
        """encoder_out (B, T', D) to log_probs (B, T', V), at least in float32 under autocast too."""
        logits = self.linear(encoder_out)
        return F.log_softmax(logits, dim=-1, dtype=None if logits.dtype.itemsize >= 4 else torch.float32)

    def losses(self, encoded: Encoded, tokens: Tensor, token_lengths: Tensor) -> dict[str, Tensor]:
        """Compute -log p(tokens) of each utterance.

        Infinite where the tokens do not fit the frames (`min_frames`): nothing is hidden.

        Args:
            encoded: of the encoder.
            tokens: (B, U).
            token_lengths: (B,).

        Returns:
            "loss", (B,), not divided by anything.
        """
        return {"loss": ctc_loss(self.log_probs(encoded.out), tokens, encoded.lengths, token_lengths)}

    @staticmethod
    def min_frames(tokens: list[int]) -> int:
        """Fewest frames that can spell `tokens`: one each, and a blank between two that are the same."""
        return len(tokens) + sum(map(eq, tokens, tokens[1:]))

    def cells(self, frames: Lengths, tokens: Lengths) -> Lengths:
        """Numbers in log_probs."""
        return frames * self.linear.out_features


def ctc_loss(log_probs: Tensor, tokens: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
    """-log p(tokens) of each utterance, (B,), by log_probs (B, T', V)."""
    by_frame = log_probs.transpose(0, 1)  # (T', B, V)
    return F.ctc_loss(by_frame, tokens, lengths, token_lengths, blank=BLANK_ID, reduction="none")
