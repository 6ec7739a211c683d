"""The joint network of transducers, and the logits that it gives in training."""

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
    """Add up a frame and the tokens before it, and map the sum to logits of what follows.

    Args:
        output_dim: D, of the encoder.
        predictor_dim: P, of the prediction network.
        num_logits: V, and more where durations are predicted too.
        joint_dim: J.
        activation: name of the function that the sum goes through.
        dropout: of its result.
    """

    def __init__(
        self, output_dim: int, predictor_dim: int, num_logits: int, joint_dim: int, activation: str, dropout: float
    ) -> None:
        super().__init__()
        self.of_frames = nn.Linear(output_dim, joint_dim)
        self.of_tokens = nn.Linear(predictor_dim, joint_dim, bias=False)  # the sum needs one bias
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(joint_dim, num_logits)

    def forward(self, frames: Tensor, tokens: Tensor) -> Tensor:
        """What `of_frames` and `of_tokens` gave, (..., J) each, to logits."""
        logits: Tensor = self.output(self.dropout(self.activation(frames + tokens)))
        return logits


def joint_logits(
    joiner: JointNetwork, predictor: Predictor, encoded: Encoded, tokens: Tensor, token_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Join all frames with all beginnings of the reference tokens, as the loss needs them.

    Args:
        joiner: joint network.
        predictor: prediction network.
        encoded: output of the encoder.
        tokens: (B, U).
        token_lengths: (B,).

    Returns:
        Logits (B, T', U + 1, ...) and tokens (B, U), both cut to the longest utterance; the tokens' padding is 0.
    """
    num_frames, num_tokens = int(encoded.lengths.max()), int(token_lengths.max())  # no cell of padding alone
    tokens = tokens[:, :num_tokens].masked_fill(padding_mask(token_lengths, num_tokens), 0)
    frames = joiner.of_frames(encoded.out[:, :num_frames])[:, :, None]  # (B, T', 1, J)
    return joiner(frames, joiner.of_tokens(predictor(tokens))[:, None]), tokens
