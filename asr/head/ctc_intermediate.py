"""CTC with intermediate losses: blocks in the middle of the encoder learn to spell, too."""

from typing import Annotated

import torch
from torch import Tensor, nn

from asr.errors import InputError
from asr.head.ctc import CTC
from asr.interfaces import Encoded, Tap
from asr.settings.rule import Fraction, whole

NumIntermediate = Annotated[int, whole(1, 100)]


class CTCIntermediate(nn.Module):
    """Intermediate CTC: the output layer is shared by the last block and by evenly spaced ones before it.

    *Source*: Lee and Watanabe 2021, arXiv:2102.03216. It costs the loss's time in training, and nothing afterwards.

    Args:
        output_dim: D.
        num_blocks: of the encoder.
        vocab_size: V, blank included.
        num_intermediate: blocks beside the last that have a loss.
        weight: of the mean of their losses; the last block's has the rest.
    """

    loss_names = ("last_ctc", "intermediate_ctc")
    views = 1

    def __init__(
        self, output_dim: int, num_blocks: int, vocab_size: int, *, num_intermediate: NumIntermediate, weight: Fraction
    ) -> None:
        super().__init__()
        self.ctc = CTC(output_dim, num_blocks, vocab_size)
        self.min_frames, self.cells = self.ctc.min_frames, self.ctc.cells
        self.weight = weight
        self.tapped = evenly_spaced(num_blocks, num_intermediate)

    @property
    def taps(self) -> dict[int, Tap]:
        """The intermediate blocks, which are only looked at."""
        return dict.fromkeys(self.tapped, unchanged)

    @property
    def frame_head(self) -> CTC:
        """The output layer."""
        return self.ctc

    def losses(self, encoded: Encoded, tokens: Tensor, token_lengths: Tensor) -> dict[str, Tensor]:
        """Compute the weighted loss of each utterance, and its parts, (B,) each; arguments are those of `CTC`."""
        last = self.ctc.losses(encoded, tokens, token_lengths)["loss"]
        intermediate_encoded = [encoded._replace(out=block) for block in encoded.blocks.values()]
        losses = [self.ctc.losses(each, tokens, token_lengths)["loss"] for each in intermediate_encoded]
        intermediate = torch.stack(losses).mean(dim=0)
        loss = (1 - self.weight) * last + self.weight * intermediate
        return {"loss": loss, "last_ctc": last, "intermediate_ctc": intermediate}


def evenly_spaced(num_blocks: int, number: int) -> list[int]:
    """Choose blocks that part the encoder evenly (arXiv:2102.03216, section 3.2), counted from 0; never the last.

    Raises:
        InputError: the encoder has too few.
    """
    if number >= num_blocks:
        must = "head.num_intermediate must be less than the blocks of the encoder (encoder.num_layers)"
        raise InputError(f"{must}; got {number}, and {num_blocks} blocks.")
    return [place * num_blocks // (number + 1) - 1 for place in range(1, number + 1)]


def unchanged(x: Tensor, padding_mask: Tensor) -> Tensor:
    """A tap that only looks."""
    return x
