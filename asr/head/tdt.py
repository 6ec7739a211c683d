"""The token-and-duration transducer, which also predicts the number of frames from each token to the next."""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from asr.head.ctc import CTC
from asr.head.joint_network import Joiner, JointActivation, joint_logits
from asr.head.transducer import CTCWeight
from asr.interfaces import NO_TAPS, Decoders, Encoded, Predictor, Targets
from asr.kernels.tdt_loss import tdt_loss
from asr.kernels.transducer_loss import transducer_loss
from asr.lengths import Lengths
from asr.settings.rule import FRACTION, Dim, Probability, Rule, is_whole, number

MAX_DURATION = 100  # encoder frames: several seconds of audio with any encoder's stride
DURATIONS = Rule(
    f"a list of frame counts in ascending order, 0 and 1 first, at most {MAX_DURATION}",
    lambda value: (
        isinstance(value, list)
        and all(map(is_whole, value))
        and value[:2] == [0, 1]
        and value == sorted(set(value))
        and value[-1] <= MAX_DURATION
    ),
)


class TDT(nn.Module):
    """Prediction network, joiner of tokens and durations, and a CTC head if `ctc_weight` is not 0.

    *Source*: Xu et al. 2023, arXiv:2304.06795; omega as in NVIDIA NeMo.

    Args:
        output_dim: D.
        num_blocks: number of encoder blocks; not used by the transducer.
        vocab_size: V, including the blank.
        joint_dim: J, dimension of the joiner.
        joint_activation: activation of the joiner.
        dropout: dropout in the joiner, after the activation.
        durations: possible durations of a token or a blank in encoder frames; a blank lasts at least one.
        sigma: subtracted from the log-probabilities of tokens and blank in training, which favours long durations
            (section 3.3 of the paper).
        omega: probability that a training batch uses the loss of a transducer without durations instead.
        ctc_weight: weight of the CTC loss; the transducer loss has weight 1 - ctc_weight. 0: no CTC head.
        predictor: makes the prediction network, given V.
    """

    taps = NO_TAPS
    decoders = Decoders(greedy=("tdt_greedy", "greedy"), beam=("tdt_beam", "beam"))
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
        durations: Annotated[list[int], DURATIONS],
        sigma: Annotated[float, number(0, 1)],
        omega: Annotated[float, FRACTION],
        ctc_weight: CTCWeight,
        predictor: Callable[[int], Predictor],
    ) -> None:
        super().__init__()
        self.durations = tuple(durations)
        self.vocab_size = vocab_size
        self.predictor = predictor(vocab_size)
        dims = output_dim, self.predictor.output_dim, vocab_size + len(durations), joint_dim
        self.duration_joiner = Joiner(*dims, joint_activation, dropout)
        self.ctc = CTC(output_dim, num_blocks, vocab_size) if ctc_weight else None
        self.ctc_weight = ctc_weight
        self.sigma = sigma
        self.omega = omega

    @property
    def loss_names(self) -> tuple[str, ...]:
        """Names of the two parts of the loss; empty without a CTC head."""
        return ("tdt", "ctc") if self.ctc is not None else ()

    @property
    def frame_head(self) -> CTC | None:
        """The CTC head; None if `ctc_weight` is 0."""
        return self.ctc

    def losses(self, encoded: Encoded, targets: Targets) -> dict[str, Tensor]:
        """Compute the weighted loss of each utterance and its two parts, (B,) each; arguments as in `CTC`.

        In training, the draw with probability `omega` uses torch's CPU generator, which is seeded for each batch.
        """
        logits, cut = joint_logits(self.duration_joiner, self.predictor, encoded, targets)
        token_lengths = targets["token_lengths"]
        if self.training and self.omega > 0 and float(torch.rand(())) < self.omega:
            tdt = transducer_loss(logits[..., : self.vocab_size], cut, encoded.lengths, token_lengths)
        else:
            sigma = self.sigma if self.training else 0.0
            tdt = tdt_loss(logits, cut, encoded.lengths, token_lengths, self.durations, sigma)
        if self.ctc is None:
            return {"loss": tdt}
        ctc = self.ctc.losses(encoded, targets)["loss"]
        loss = (1 - self.ctc_weight) * tdt + self.ctc_weight * ctc
        return {"loss": loss, "tdt": tdt, "ctc": ctc}

    def min_frames(self, tokens: list[int]) -> int:
        """Minimum number of frames for `tokens`: the minimum of the CTC head, or 1 without a CTC head."""
        return 1 if self.ctc is None else self.ctc.min_frames(tokens)

    def cells(self, frames: Lengths, tokens: Lengths) -> Lengths:
        """Number of elements of the joiner's largest tensor, over all frames and prefixes of the tokens."""
        return frames * (tokens + 1) * max(self.duration_joiner.output.weight.shape)
