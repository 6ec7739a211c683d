"""The transducer (RNN-T): a frame and the tokens before it, which a prediction network reads, give the next token."""

from collections.abc import Callable
from typing import Annotated

from torch import Tensor, nn

from asr.head.ctc import CTC
from asr.head.joint_network import Joiner, JointActivation, joint_logits
from asr.interfaces import NO_TAPS, Encoded, Predictor
from asr.kernels.transducer_loss import transducer_loss
from asr.lengths import Lengths
from asr.settings.rule import PROBABILITY, Dim, Probability

CTCWeight = Annotated[float, PROBABILITY]


class Transducer(nn.Module):
    """Prediction network and joiner, and beside them a CTC head, unless its loss has no weight.

    *Source*: Graves 2012, arXiv:1211.3711; the joiner: Graves et al. 2013, arXiv:1303.5778, section 2.3.

    Args:
        output_dim: D.
        num_blocks: of the encoder.
        vocab_size: V, blank included.
        joint_dim: J, of the joiner.
        joint_activation: of the joiner.
        dropout: of what the joiner adds up.
        ctc_weight: of the CTC loss, the transducer's has the rest; 0: there is no CTC head.
        predictor: makes the prediction network, given V.
    """

    taps = NO_TAPS
    views = 1

    def __init__(
        self,
        output_dim: int,
        num_blocks: int,
        vocab_size: int,
        *,
        joint_dim: Dim,
        joint_activation: JointActivation,
        dropout: Probability,
        ctc_weight: CTCWeight,
        predictor: Callable[[int], Predictor],
    ) -> None:
        super().__init__()
        self.predictor = predictor(vocab_size)
        dims = output_dim, self.predictor.output_dim, vocab_size, joint_dim
        self.joiner = Joiner(*dims, joint_activation, dropout)
        self.ctc = CTC(output_dim, num_blocks, vocab_size) if ctc_weight else None
        self.ctc_weight = ctc_weight

    @property
    def loss_names(self) -> tuple[str, ...]:
        """Both parts of the loss, if there are two."""
        return ("transducer", "ctc") if self.ctc is not None else ()

    @property
    def frame_head(self) -> CTC | None:
        """The CTC head beside it."""
        return self.ctc

    def losses(self, encoded: Encoded, tokens: Tensor, token_lengths: Tensor) -> dict[str, Tensor]:
        """Compute the weighted loss of each utterance, and its parts, (B,) each; arguments are those of `CTC`."""
        logits, cut = joint_logits(self.joiner, self.predictor, encoded, tokens, token_lengths)
        transducer = transducer_loss(logits, cut, encoded.lengths, token_lengths)
        if self.ctc is None:
            return {"loss": transducer}
        ctc = self.ctc.losses(encoded, tokens, token_lengths)["loss"]
        loss = (1 - self.ctc_weight) * transducer + self.ctc_weight * ctc
        return {"loss": loss, "transducer": transducer, "ctc": ctc}

    def min_frames(self, tokens: list[int]) -> int:
        """Fewest frames that can spell `tokens`: those of the CTC head; without it, one."""
        return 1 if self.ctc is None else self.ctc.min_frames(tokens)

    def cells(self, frames: Lengths, tokens: Lengths) -> Lengths:
        """Numbers in what the joiner makes of each frame with each number of tokens."""
        return frames * (tokens + 1) * max(self.joiner.output.weight.shape)
