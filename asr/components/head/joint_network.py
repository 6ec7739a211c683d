"""The joint network of transducers, and its logits in training."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated

import torch
from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.base.kernels.token_mask import TokenMask
from asr.base.settings.rule import one_of
from asr.interfaces import Encoded, Predictor, Targets
from asr.lengths import padding_mask

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType({"tanh": torch.tanh, "relu": torch.relu})
JointActivation = Annotated[str, one_of(*ACTIVATIONS)]
START_DURATION_LOGIT = 3.0  # logit of one frame; other durations have 0, so with five durations its probability is 0.83


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
        self.mask = TokenMask()

    def forward(self, frames: Tensor, tokens: Tensor) -> Tensor:
        """Map the outputs of `of_frames` and `of_tokens`, (..., J) each, to logits; those of masked tokens are -inf."""
        return self.mask.logits(self.all_logits(frames, tokens))

    def all_logits(self, frames: Tensor, tokens: Tensor) -> Tensor:
        """Map to logits without a mask, as losses see them."""
        logits: Tensor = self.output(self.dropout(self.activation(frames + tokens)))
        return logits

    @torch.no_grad()
    def start_from_frames(self, weight: Tensor, bias: Tensor) -> bool:
        """Initialise the joiner so that its token logits are those of a linear layer on frames, such as the CTC layer.

        Each dimension x of a frame takes two hidden units, because relu(x) - relu(-x) = x. Tokens change the logits
        only after training. The most likely duration is one frame. Further hidden units are not changed.

        Args:
            weight: of the linear layer, (V, D).
            bias: (V,).

        Returns:
            Whether the joiner can be initialised in this way: the activation is relu and J is at least 2 D.
        """
        (vocab_size, dim), num_units = weight.shape, 2 * weight.shape[1]
        if self.activation is not torch.relu or self.output.in_features < num_units:
            return False
        self.of_frames.weight[:num_units] = torch.cat([torch.eye(dim), -torch.eye(dim)])
        self.of_frames.bias[:num_units] = 0.0
        self.of_tokens.weight[:num_units] = 0.0
        self.output.weight[:vocab_size, :num_units] = torch.cat([weight, -weight], dim=1)
        self.output.bias[:vocab_size] = bias
        if self.output.out_features > vocab_size:
            self.output.weight[vocab_size:] = 0.0
            self.output.bias[vocab_size:] = 0.0
            self.output.bias[vocab_size + 1] = START_DURATION_LOGIT  # durations begin with 0 and 1
        return True


def joint_logits(joiner: Joiner, predictor: Predictor, encoded: Encoded, targets: Targets) -> tuple[Tensor, Tensor]:
    """Compute the logits of all frames combined with all prefixes of the reference tokens, as the loss requires.

    Args:
        joiner: joint network.
        predictor: prediction network.
        encoded: output of the encoder.
        targets: tokens and token_lengths.

    Returns:
        Logits (B, T', U + 1, ...), cut to the longest utterance, and tokens (B, U), whose padding is 0.
    """
    tokens, num_frames = targets["tokens"], max(encoded.frame_counts)
    tokens = tokens.masked_fill(padding_mask(targets["token_lengths"], tokens.shape[1]), 0)
    frames = joiner.of_frames(encoded.out[:, :num_frames])[:, :, None]  # (B, T', 1, J)
    return joiner.all_logits(frames, joiner.of_tokens(predictor(tokens))[:, None]), tokens
