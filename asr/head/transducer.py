"""The transducer: what comes next is told by a frame and by the tokens before, which its prediction network reads."""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from asr.head.ctc import CTC
from asr.interfaces import NO_TAPS, Encoded, Predictor
from asr.kernels.dropout import Dropout
from asr.kernels.transducer_loss import transducer_loss
from asr.lengths import Lengths, padding_mask
from asr.settings.rule import Dim, Probability, above


class Transducer(nn.Module):
    """Prediction network and joiner, and beside them a CTC head that says which frames spell a token.

    *Source*: Graves 2012, arXiv:1211.3711; the joiner: Graves et al. 2013, arXiv:1303.5778, section 2.3.

    Args:
        output_dim: D.
        num_blocks: of the encoder.
        vocab_size: V, blank included.
        joint_dim: J, of the joiner.
        dropout: of what the joiner adds up.
        ctc_weight: of the CTC loss; the transducer's has the rest.
        predictor: makes the prediction network, given V.
    """

    loss_names = ("transducer", "ctc")
    taps = NO_TAPS
    views = 1

    def __init__(
        self,
        output_dim: int,
        num_blocks: int,
        vocab_size: int,
        *,
        joint_dim: Dim,
        dropout: Probability,
        ctc_weight: Annotated[float, above(0, 1)],
        predictor: Callable[[int], Predictor],
    ) -> None:
        super().__init__()
        self.predictor = predictor(vocab_size)
        self.joiner = Joiner(output_dim, self.predictor.output_dim, vocab_size, joint_dim, dropout)
        self.ctc = CTC(output_dim, num_blocks, vocab_size)
        self.ctc_weight = ctc_weight
        self.min_frames = self.ctc.min_frames

    @property
    def frame_head(self) -> CTC:
        """The CTC head beside it."""
        return self.ctc

    def losses(self, encoded: Encoded, tokens: Tensor, token_lengths: Tensor) -> dict[str, Tensor]:
        """Compute the weighted loss of each utterance, and its parts, (B,) each; arguments are those of `CTC`."""
        ctc = self.ctc.losses(encoded, tokens, token_lengths)["loss"]
        num_frames, num_tokens = int(encoded.lengths.max()), int(token_lengths.max())  # no cell of padding alone
        tokens = tokens[:, :num_tokens].masked_fill(padding_mask(token_lengths, num_tokens), 0)
        frames = self.joiner.of_frames(encoded.out[:, :num_frames])[:, :, None]  # (B, T', 1, J)
        logits = self.joiner(frames, self.joiner.of_tokens(self.predictor(tokens))[:, None])  # (B, T', U + 1, V)
        transducer = transducer_loss(logits, tokens, encoded.lengths, token_lengths)
        loss = (1 - self.ctc_weight) * transducer + self.ctc_weight * ctc
        return {"loss": loss, "transducer": transducer, "ctc": ctc}

    def cells(self, frames: Lengths, tokens: Lengths) -> Lengths:
        """Numbers in what the joiner makes of each frame with each number of tokens."""
        return frames * (tokens + 1) * max(self.joiner.output.weight.shape)


class Joiner(nn.Module):
    """A frame and the tokens before, added up, to logits of what comes next."""

    def __init__(self, output_dim: int, predictor_dim: int, vocab_size: int, joint_dim: int, dropout: float) -> None:
        super().__init__()
        self.of_frames = nn.Linear(output_dim, joint_dim)
        self.of_tokens = nn.Linear(predictor_dim, joint_dim, bias=False)  # one is enough
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(joint_dim, vocab_size)

    def forward(self, frames: Tensor, tokens: Tensor) -> Tensor:
        """What `of_frames` and `of_tokens` gave, (..., J) each, to logits (..., V)."""
        logits: Tensor = self.output(self.dropout(torch.tanh(frames + tokens)))
        return logits
