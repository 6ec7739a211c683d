"""The joint network of transducers, and its logits in training."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated

import torch
from torch import Tensor, nn

from asr.interfaces import Encoded, JointNetwork, Predictor
from asr.kernels.dropout import Dropout
from asr.lengths import padding_mask
from asr.settings.rule import one_of

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType({"tanh": torch.tanh, "relu": torch.relu})
JointActivation = Annotated[str, one_of(*ACTIVATIONS)]


class Joiner(nn.Module):
    """Add the projections of a frame and of the tokens before it, and map the sum to logits of the next token.

    Args:
        output_dim: D, dimension of the encoder.
        predictor_dim: P, dimension of the prediction network.
        num_logits: V, plus the number of durations if they are predicted.
        joint_dim: J.
        activation: name of the activation applied to the sum.
        dropout: dropout after the activation.
    """

    def __init__(
        self, output_dim: int, predictor_dim: int, num_logits: int, joint_dim: int, activation: str, dropout: float
    ) -> None:
        super().__init__()
        self.of_frames = nn.Linear(output_dim, joint_dim)
        self.of_tokens = nn.Linear(predictor_dim, joint_dim, bias=False)  # the sum needs only the bias of `of_frames`
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(joint_dim, num_logits)

    def forward(self, frames: Tensor, tokens: Tensor) -> Tensor:
        """Map the outputs of `of_frames` and `of_tokens`, (..., J) each, to logits."""
        logits: Tensor = self.output(self.dropout(self.activation(frames + tokens)))
        return logits


def joint_logits(
    joiner: JointNetwork, predictor: Predictor, encoded: Encoded, tokens: Tensor, token_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the logits of all frames combined with all prefixes of the reference tokens, as the loss requires.

    Args:
        joiner: joint network.
        predictor: prediction network.
        encoded: output of the encoder.
        tokens: (B, U).
        token_lengths: (B,).

    Returns:
        Logits (B, T', U + 1, ...) and tokens (B, U), both cut to the longest utterance; padding tokens are 0.
    """
    num_frames, num_tokens = int(encoded.lengths.max()), int(token_lengths.max())  # drop padding common to all
    tokens = tokens[:, :num_tokens].masked_fill(padding_mask(token_lengths, num_tokens), 0)
    frames = joiner.of_frames(encoded.out[:, :num_frames])[:, :, None]  # (B, T', 1, J)
    return joiner(frames, joiner.of_tokens(predictor(tokens))[:, None]), tokens
