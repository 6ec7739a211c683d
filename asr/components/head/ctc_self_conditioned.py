"""Self-conditioned CTC: predictions of intermediate blocks are part of the input of the next blocks."""

from torch import Tensor, nn

from asr.base.settings.rule import Fraction
from asr.components.head.ctc import CTC
from asr.components.head.ctc_intermediate import CTCIntermediate, NumIntermediate
from asr.interfaces import BlockDims, Tap


class CTCSelfConditioned(nn.Module):
    """Intermediate CTC whose predictions are projected and added to the input of the next block.

    *Source*: Nozaki and Komatsu 2021, arXiv:2104.02724, equations 8 to 10; all blocks share one projection.

    Args:
        block_dims: dimension of each block of the encoder by name, in order of use.
        num_intermediate: as in `CTCIntermediate`.
        weight: as in `CTCIntermediate`.
    """

    loss_names = CTCIntermediate.loss_names
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
        self.intermediate = CTCIntermediate(
            output_dim, block_dims, vocab_size, num_intermediate=num_intermediate, weight=weight
        )
        self.condition = nn.Linear(vocab_size, output_dim)
        self.losses, self.restrict = self.intermediate.losses, self.intermediate.restrict
        self.min_frames, self.cells = self.intermediate.min_frames, self.intermediate.cells

    @property
    def taps(self) -> dict[int, Tap]:
        """Taps of the intermediate blocks, which add the projected predictions to the next block's input."""
        return dict.fromkeys(self.intermediate.tapped, self._conditioned)

    @property
    def frame_head(self) -> CTC:
        """The CTC head."""
        return self.intermediate.ctc

    def _conditioned(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        return x + self.condition(self.frame_head.all_log_probs(x).exp().to(x.dtype))
