"""The CTC head: a distribution over tokens and blank for each encoder frame, and the CTC loss."""

from operator import eq

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.ctc_loss import ctc_loss
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

    @property
    def frame_head(self) -> "CTC":
        """This object, because it returns a distribution for each frame."""
        return self

    def log_probs(self, encoder_out: Tensor) -> Tensor:
        """Map encoder_out (B, T', D) to log_probs (B, T', V), at least float32 even under autocast."""
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
        return {"loss": ctc_loss(encoded.log_probs_by(self.log_probs), encoded.lengths, targets)}

    @staticmethod
    def min_frames(tokens: list[int]) -> int:
        """Minimum number of frames for `tokens`: one per token, and one for the blank between equal neighbours."""
        return len(tokens) + sum(map(eq, tokens, tokens[1:]))

    def cells(self, frames: Lengths, tokens: Lengths) -> Lengths:
        """Number of elements of log_probs."""
        return frames * self.linear.out_features
