"""CTC with consistency regularisation between two differently masked views of an utterance."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.ctc_loss import ctc_loss
from asr.base.settings.rule import number
from asr.components.head.ctc import CTC
from asr.interfaces import NO_TAPS, BlockDims, Encoded, Targets
from asr.lengths import padding_mask


class CTCConsistency(nn.Module):
    """CR-CTC: the mean CTC loss of two views, plus a loss on the differences between their frame distributions.

    *Source*: Yao et al. 2024, arXiv:2410.05101, section 3.2. Each view's distributions, without gradient, are the
    targets of the other view. The views differ in their masks (`augment`) and in dropout. With a single view, as in
    validation, the loss is the CTC loss.

    Args:
        weight: weight of the consistency loss (the paper's alpha).
    """

    loss_names = ("ctc", "consistency")
    taps = NO_TAPS
    decoders = CTC.decoders
    views = 2

    def __init__(
        self, output_dim: int, block_dims: BlockDims, vocab_size: int, *, weight: Annotated[float, number(0, 100)]
    ) -> None:
        super().__init__()
        self.ctc = CTC(output_dim, block_dims, vocab_size)
        self.min_frames, self.cells, self.restrict = self.ctc.min_frames, self.ctc.cells, self.ctc.restrict
        self.weight = weight

    @property
    def frame_head(self) -> CTC:
        """The CTC head."""
        return self.ctc

    def losses(self, encoded: Encoded, targets: Targets) -> dict[str, Tensor]:
        """Compute the loss of each utterance and its two parts, (B,) each.

        Args:
            encoded: output of the encoder for all views, (views * B, T', D): first views of all utterances, then
                second views.
            targets: tokens and token_lengths, of one view.
        """
        num_utterances = len(targets["tokens"])
        views = len(encoded.out) // num_utterances
        log_probs = self.ctc.all_of(encoded)  # (views * B, T', V)
        by_view = ctc_loss(
            log_probs, encoded.lengths, {name: torch.cat([target] * views) for name, target in targets.items()}
        )
        ctc = by_view.view(views, -1).mean(dim=0)
        consistency = torch.zeros_like(ctc)
        if views > 1:
            other = log_probs.detach().roll(num_utterances, dims=0)
            divergence = F.kl_div(log_probs, other, reduction="none", log_target=True).sum(dim=-1)  # (views * B, T')
            divergence = divergence.masked_fill(padding_mask(encoded.lengths, divergence.shape[1]), 0.0).sum(dim=1)
            consistency = divergence.view(views, -1).mean(dim=0)
        return {"loss": ctc + self.weight * consistency, "ctc": ctc, "consistency": consistency}
