"""A prediction network that convolves the embeddings of the last few tokens."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.settings.rule import Dim, whole
from asr.errors import InputError
from asr.interfaces import BLANK_ID


class StatelessConv(nn.Module):
    """Convolve the embeddings of the last tokens in groups of channels; ReLU.

    *Source*: Ghodsi et al. 2020, "RNN-transducer with stateless prediction network", which has one token and no
    convolution; with several tokens: the stateless decoder of icefall.

    Args:
        dim: P, dimension of the embedding and of the output.
        num_tokens: N, number of last tokens. 1: the output is the embedding of the last token.
        group_dim: channels of the embedding that each output channel depends on.

    Raises:
        InputError: dim is no multiple of group_dim.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        dim: Dim,
        num_tokens: Annotated[int, whole(1, 100)],
        group_dim: Dim,
    ) -> None:
        super().__init__()
        if dim % group_dim:
            must = "head.predictor.dim must be a multiple of head.predictor.group_dim"
            raise InputError(f"{must}; got dim={dim}, group_dim={group_dim}.")
        self.output_dim = dim
        self.num_tokens = num_tokens
        self.embedding = nn.Embedding(vocab_size, dim)
        convolution = nn.Conv1d(dim, dim, num_tokens, groups=dim // group_dim, bias=False)
        self.convolve = nn.Sequential(convolution, nn.ReLU()) if num_tokens > 1 else nn.Identity()

    def initial_state(self, batch: int) -> Tensor:
        """Return the initial state, (B, N): the last N tokens plus 1; 0, where there is none, is embedded as zeros."""
        return torch.zeros(batch, self.num_tokens, dtype=torch.int64, device=self.embedding.weight.device)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take the next tokens, (B,), and the state; return the output, (B, P), and the next state."""
        state = torch.cat([state[:, 1:], tokens[:, None] + 1], dim=1)
        return self._convolved(state)[:, 0], state

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, U) to (B, U + 1, P): an output before the first token and after each token."""
        begun = F.pad(tokens, (1, 0), value=BLANK_ID) + 1
        return self._convolved(F.pad(begun, (self.num_tokens - 1, 0)))

    def _convolved(self, read: Tensor) -> Tensor:
        """Map tokens plus 1, (B, N - 1 + U), to the outputs after the last U of them, (B, U, P)."""
        embedded = self.embedding((read - 1).clamp(min=0)).masked_fill((read == 0)[..., None], 0.0)
        out: Tensor = self.convolve(embedded.transpose(1, 2)).transpose(1, 2)
        return out
