"""Self-conditioned CTC: what blocks in the middle of the encoder spell is told to the blocks behind them."""

from torch import Tensor, nn

from asr.head.ctc import CTC
from asr.head.ctc_intermediate import CTCIntermediate, NumIntermediate
from asr.interfaces import Tap
from asr.settings.rule import Fraction


class CTCSelfConditioned(nn.Module):
    """Intermediate CTC whose predictions are projected and added to what the next block gets.

    *Source*: Nozaki and Komatsu 2021, arXiv:2104.02724, equations 8 to 10; one projection for all blocks.

    Args:
        output_dim: D.
        num_blocks: of the encoder.
        vocab_size: V, blank included.
        num_intermediate: as in `CTCIntermediate`.
        weight: as in `CTCIntermediate`.
    """

    loss_names = CTCIntermediate.loss_names
    views = 1

    def __init__(
        self, output_dim: int, num_blocks: int, vocab_size: int, *, num_intermediate: NumIntermediate, weight: Fraction
    ) -> None:
        super().__init__()
        self.intermediate = CTCIntermediate(
            output_dim, num_blocks, vocab_size, num_intermediate=num_intermediate, weight=weight
        )
        self.condition = nn.Linear(vocab_size, output_dim)
        self.losses = self.intermediate.losses
        self.min_frames, self.cells = self.intermediate.min_frames, self.intermediate.cells

    @property
    def taps(self) -> dict[int, Tap]:
        """The intermediate blocks: what they spell is added to what the next ones get."""
        return dict.fromkeys(self.intermediate.tapped, self._conditioned)

    @property
    def frame_head(self) -> CTC:
        """The output layer."""
        return self.intermediate.ctc

    def _conditioned(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        return x + self.condition(self.frame_head.log_probs(x).exp().to(x.dtype))
