"""The transducer (RNN-T), which predicts the next token from a frame and the output of a prediction network."""

from collections.abc import Callable
from typing import Annotated

from torch import Tensor, nn

from asr.head.ctc import CTC
from asr.head.joint_network import Joiner, JointActivation, joint_logits
from asr.interfaces import NO_TAPS, Decoders, Encoded, Predictor, Targets
from asr.kernels.transducer_loss import transducer_loss
from asr.lengths import Lengths
from asr.settings.rule import PROBABILITY, Dim, Probability

CTCWeight = Annotated[float, PROBABILITY]


class Transducer(nn.Module):
    """Prediction network, joiner, and a CTC head if `ctc_weight` is not 0.

    *Source*: Graves 2012, arXiv:1211.3711; the joiner: Graves et al. 2013, arXiv:1303.5778, section 2.3.

    Args:
        output_dim: D.
        num_blocks: number of encoder blocks; not used by the transducer.
        vocab_size: V, including the blank.
        joint_dim: J, dimension of the joiner.
        joint_activation: activation of the joiner.
        dropout: dropout in the joiner, after the activation.
        ctc_weight: weight of the CTC loss; the transducer loss has weight 1 - ctc_weight. 0: no CTC head.
        predictor: makes the prediction network, given V.
    """

    taps = NO_TAPS
    decoders = Decoders(greedy=("transducer_greedy", "greedy"), beam=("transducer_beam", "beam"))
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
        """Names of the two parts of the loss; empty without a CTC head."""
        return ("transducer", "ctc") if self.ctc is not None else ()

    @property
    def frame_head(self) -> CTC | None:
        """The CTC head; None if `ctc_weight` is 0."""
        return self.ctc

    def losses(self, encoded: Encoded, targets: Targets) -> dict[str, Tensor]:
        """Compute the weighted loss of each utterance and its two parts, (B,) each; arguments as in `CTC`."""
        logits, cut = joint_logits(self.joiner, self.predictor, encoded, targets)
        token_lengths = targets["token_lengths"]
        transducer = transducer_loss(logits, cut, encoded.lengths, token_lengths)
        if self.ctc is None:
            return {"loss": transducer}
        ctc = self.ctc.losses(encoded, targets)["loss"]
        loss = (1 - self.ctc_weight) * transducer + self.ctc_weight * ctc
        return {"loss": loss, "transducer": transducer, "ctc": ctc}

    def min_frames(self, tokens: list[int]) -> int:
        """Minimum number of frames for `tokens`: the minimum of the CTC head, or 1 without a CTC head."""
        return 1 if self.ctc is None else self.ctc.min_frames(tokens)

    def cells(self, frames: Lengths, tokens: Lengths) -> Lengths:
        """Number of elements of the joiner's largest tensor, over all frames and prefixes of the tokens."""
        return frames * (tokens + 1) * max(self.joiner.output.weight.shape)
