"""CTC with additional losses on intermediate blocks of the encoder."""

from collections.abc import Iterable
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.base.kernels.ctc_loss import ctc_loss
from asr.base.settings.rule import Fraction, whole
from asr.components.head.ctc import CTC
from asr.errors import InputError
from asr.interfaces import BlockDims, Encoded, Tap, Targets

NumIntermediate = Annotated[int, whole(1, 100)]


class CTCIntermediate(nn.Module):
    """Intermediate CTC: the last block and evenly spaced earlier blocks share one output layer.

    *Source*: Lee and Watanabe 2021, arXiv:2102.03216. Training computes the additional losses; inference is unchanged.

    Args:
        block_dims: dimension of each block of the encoder by name, in order of use.
        num_intermediate: number of intermediate blocks with a loss.
        weight: weight of the mean intermediate loss; the loss of the last block has weight 1 - weight.

    Raises:
        InputError: the encoder has too few blocks, or a tapped block has another dimension than the encoder's output.
    """

    loss_names = ("last_ctc", "intermediate_ctc")
    decoders = CTC.decoders
    views = 1

    def __init__(
        self,
        output_dim: int,
        block_dims: BlockDims,
        vocab_size: int,
        *,
        num_intermediate: NumIntermediate,
        weight: Fraction,
    ) -> None:
        super().__init__()
        self.ctc = CTC(output_dim, block_dims, vocab_size)
        self.min_frames, self.cells, self.restrict = self.ctc.min_frames, self.ctc.cells, self.ctc.restrict
        self.weight = weight
        self.tapped = evenly_spaced(len(block_dims), num_intermediate)
        _check_dims(self.tapped, block_dims, output_dim)

    @property
    def taps(self) -> dict[int, Tap]:
        """Functions that are applied to the outputs of the intermediate blocks; they do not change the outputs."""
        return dict.fromkeys(self.tapped, unchanged)

    @property
    def frame_head(self) -> CTC:
        """The CTC head."""
        return self.ctc

    def losses(self, encoded: Encoded, targets: Targets) -> dict[str, Tensor]:
        """Compute the weighted loss of each utterance and its two parts, (B,) each; arguments as in `CTC`."""
        every = [*encoded.blocks.values(), encoded]
        # One call for all blocks, because each call of torch's loss waits for a GPU several times.
        num_frames = max(each.out.shape[1] for each in every)
        outs = torch.cat([F.pad(each.out, (0, 0, 0, num_frames - each.out.shape[1])) for each in every])
        lengths = torch.cat([each.lengths for each in every])
        repeated = {name: torch.cat([target] * len(every)) for name, target in targets.items()}
        losses = ctc_loss(self.ctc.all_log_probs(outs), lengths, repeated).unflatten(0, (len(every), -1))
        intermediate, last = losses[:-1].mean(dim=0), losses[-1]
        loss = (1 - self.weight) * last + self.weight * intermediate
        return {"loss": loss, "last_ctc": last, "intermediate_ctc": intermediate}


def evenly_spaced(num_blocks: int, number: int) -> list[int]:
    """Return the indices, from 0, of evenly spaced blocks except the last block (arXiv:2102.03216, section 3.2).

    Raises:
        InputError: the encoder has too few blocks.
    """
    if number >= num_blocks:
        must = "head.num_intermediate must be less than the number of the encoder's blocks (encoder.num_layers)"
        raise InputError(f"{must}; got {number} and {num_blocks} blocks.")
    return [part * num_blocks // (number + 1) - 1 for part in range(1, number + 1)]


def _check_dims(tapped: Iterable[int], block_dims: BlockDims, output_dim: int) -> None:
    """Check that the output layer, which is made for the encoder's output, fits the outputs of the tapped blocks."""
    named = [*block_dims.items()]
    for name, dim in (named[index] for index in tapped):
        if dim != output_dim:
            must = f"the blocks that the head taps must have the dimension of the encoder's output, {output_dim}"
            cure = "Choose another head.num_intermediate, or head=ctc, which taps no block"
            raise InputError(f"{must}; encoder.{name} has {dim}. {cure}.")


def unchanged(x: Tensor, padding_mask: Tensor) -> Tensor:
    """Return x unchanged; this is the tap of a block whose output is only recorded."""
    return x
