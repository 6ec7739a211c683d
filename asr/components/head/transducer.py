"""The transducer (RNN-T), with or without durations (TDT): the next token from a frame and the tokens before it."""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from asr.base.kernels.transducer_loss import transducer_loss
from asr.base.settings.rule import FRACTION, PROBABILITY, Dim, Probability, Rule, is_whole, number
from asr.components.head.ctc import CTC
from asr.components.head.joint_network import Joiner, JointActivation, joint_logits
from asr.errors import InputError
from asr.interfaces import NO_TAPS, BlockDims, Decoders, Encoded, Predictor, Targets
from asr.lengths import Lengths

MAX_DURATION = 100  # encoder frames: several seconds of audio with any encoder's stride
DURATIONS = Rule(
    f"empty, or a list of frame counts in ascending order, 0 and 1 first, at most {MAX_DURATION}",
    lambda value: (
        isinstance(value, list)
        and all(map(is_whole, value))
        and value[:2] in ([], [0, 1])
        and value == sorted(set(value))
        and max(value, default=0) <= MAX_DURATION
    ),
)


class Transducer(nn.Module):
    """Prediction network, joiner, and a CTC head if `ctc_weight` is not 0.

    With `durations` it also predicts the number of frames from each token, or blank, to the next: TDT.

    *Source*: Graves 2012, arXiv:1211.3711; the joiner: Graves et al. 2013, arXiv:1303.5778, section 2.3; durations:
    Xu et al. 2023, arXiv:2304.06795, and omega as in NVIDIA NeMo; fast_emit: Yu et al. 2021, arXiv:2010.11148.

    *Differs from NeMo*: fast_emit does not change the value of the loss; NeMo reports it times 1 + fastemit_lambda.

    Args:
        block_dims: dimensions of the encoder's blocks; not used by the transducer.
        joint_dim: J, dimension of the joiner.
        joint_activation: activation of the joiner.
        dropout: dropout in the joiner, after the activation.
        durations: possible durations of a token or a blank in encoder frames; a blank lasts at least one. []: each
            blank lasts one frame and each token none, as in the original transducer.
        sigma: subtracted from the log-probabilities of tokens and blank in training, which favours long durations
            (section 3.3 of Xu et al.); 0 without durations.
        omega: probability that a training batch uses the loss of a transducer without durations instead; 0 without
            durations.
        fast_emit: lambda of FastEmit, which makes tokens appear earlier: the gradients of the log-probabilities of
            tokens are multiplied by 1 + fast_emit, those of blanks are not. 0 with durations.
        ctc_weight: weight of the CTC loss; the transducer loss has weight 1 - ctc_weight. 0: no CTC head.
        predictor: makes the prediction network, given V.

    Raises:
        InputError: sigma or omega is given without durations, or fast_emit with durations.
    """

    taps = NO_TAPS
    decoders = Decoders(greedy=("transducer_greedy", "greedy"), beam=("transducer_beam", "beam"))
    views = 1

    def __init__(
        self,
        output_dim: int,
        block_dims: BlockDims,
        vocab_size: int,
        *,
        joint_dim: Dim,
        joint_activation: JointActivation,
        dropout: Probability,
        durations: Annotated[list[int], DURATIONS],
        sigma: Annotated[float, number(0, 1)],
        omega: Annotated[float, FRACTION],
        fast_emit: Annotated[float, number(0, 1)],
        ctc_weight: Annotated[float, PROBABILITY],
        predictor: Callable[[int], Predictor],
    ) -> None:
        super().__init__()
        if not durations and (sigma, omega) != (0, 0):
            must = "head.sigma and head.omega must be 0 without head.durations"
            raise InputError(f"{must}; got {sigma:g} and {omega:g}. Give durations: head=tdt.")
        if durations and fast_emit:
            must = "head.fast_emit must be 0 with head.durations"
            raise InputError(f"{must}; got {fast_emit:g}. Leave it out, or take head=transducer.")
        self.durations = tuple(durations)
        self.vocab_size = vocab_size
        self.predictor = predictor(vocab_size)
        dims = output_dim, self.predictor.output_dim, vocab_size + len(durations), joint_dim
        self.joiner = Joiner(*dims, joint_activation, dropout)
        self.ctc = CTC(output_dim, block_dims, vocab_size) if ctc_weight else None
        self.ctc_weight = ctc_weight
        self.sigma = sigma
        self.omega = omega
        self.fast_emit = fast_emit

    @property
    def loss_names(self) -> tuple[str, ...]:
        """Names of the two parts of the loss; empty without a CTC head."""
        return ("transducer", "ctc") if self.ctc is not None else ()

    @property
    def frame_joiner(self) -> Joiner | None:
        """The joiner, if each output belongs to one frame; None with durations."""
        return None if self.durations else self.joiner

    @property
    def frame_head(self) -> CTC | None:
        """The CTC head; None if `ctc_weight` is 0."""
        return self.ctc

    def restrict(self, allowed: Tensor) -> None:
        """Restrict the joiner and the CTC head to the allowed tokens, (V,)."""
        self.joiner.mask.restrict(allowed)
        if self.ctc is not None:
            self.ctc.restrict(allowed)

    def losses(self, encoded: Encoded, targets: Targets) -> dict[str, Tensor]:
        """Compute the weighted loss of each utterance and its two parts, (B,) each; arguments as in `CTC`.

        In training, the draw with probability `omega` uses torch's CPU generator, which is seeded for each batch.
        """
        logits, cut = joint_logits(self.joiner, self.predictor, encoded, targets)
        lengths = encoded.lengths, targets["token_lengths"]
        without = self.training and self.omega > 0 and float(torch.rand(())) < self.omega
        durations = () if without else self.durations
        sigma = self.sigma if self.training and not without else 0.0
        logits = logits[..., : self.vocab_size + len(durations)]
        transducer = transducer_loss(logits, cut, *lengths, durations, sigma, self.fast_emit)
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
