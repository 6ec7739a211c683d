"""The CTC head: a distribution over tokens and blank for each encoder frame, and the CTC loss."""

from operator import eq

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.ctc_loss import ctc_loss
from asr.base.kernels.token_mask import TokenMask
from asr.interfaces import NO_TAPS, BlockDims, Decoders, Encoded, Targets
from asr.lengths import Lengths


class CTC(nn.Module):
    """Connectionist temporal classification.

    *Source*: Graves et al. 2006, "Connectionist Temporal Classification".
    """

    loss_names = ()
    taps = NO_TAPS
    decoders = Decoders(greedy=("greedy",), beam=("beam",))
    views = 1

    def __init__(self, output_dim: int, block_dims: BlockDims, vocab_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(output_dim, vocab_size)
        self.mask = TokenMask()
        self.restrict = self.mask.restrict

    @property
    def frame_head(self) -> "CTC":
        """This object, because it returns a distribution for each frame."""
        return self

    def log_probs(self, encoder_out: Tensor) -> Tensor:
        """Map encoder_out (B, T', D) to log_probs (B, T', V), given that no masked token is written."""
        return self.mask.log_probs(self.all_log_probs(encoder_out))

    def all_log_probs(self, encoder_out: Tensor) -> Tensor:
        """Map encoder_out to log_probs without a mask, as taps and losses see them; at least float32 with autocast."""
        logits = self.linear(encoder_out)
        return F.log_softmax(logits, dim=-1, dtype=None if logits.dtype.itemsize >= 4 else torch.float32)

    def losses(self, encoded: Encoded, targets: Targets) -> dict[str, Tensor]:
        """Compute -log p(tokens) of each utterance.

        The loss is infinite if an utterance has fewer frames than `min_frames`.

        Args:
            encoded: output of the encoder.
            targets: tokens and token_lengths.

        Returns:
            "loss", (B,), without normalisation by length.
        """
        return {"loss": ctc_loss(self.all_of(encoded), encoded.lengths, targets)}

    def all_of(self, encoded: Encoded) -> Tensor:
        """Return the log_probs (B, T', V) of the encoder's output without a mask."""
        return encoded.log_probs_by(self.log_probs) if self.mask.masked is None else self.all_log_probs(encoded.out)

    @staticmethod
    def min_frames(tokens: list[int]) -> int:
        """Minimum number of frames for `tokens`: one per token, and one for the blank between equal neighbours."""
        return len(tokens) + sum(map(eq, tokens, tokens[1:]))

    def cells(self, frames: Lengths, tokens: Lengths) -> Lengths:
        """Number of elements of log_probs."""
        return frames * self.linear.out_features
