"""A prediction network whose output depends only on the last few tokens."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.settings.rule import Dim, Heads, whole
from asr.interfaces import BLANK_ID


class Stateless(nn.Module):
    """Average the embeddings of the last tokens, each weighted by its dot products with position vectors.

    *Source*: Botros et al. 2021, arXiv:2109.07513, section 3. *Differs from the paper*: the embedding is not shared
    with the joiner.

    Args:
        dim: P, dimension of the embedding and of the output.
        num_heads: number of position vectors for each position.
        num_tokens: N, number of last tokens.
    """

    def __init__(
        self, vocab_size: int, *, dim: Dim, num_heads: Heads, num_tokens: Annotated[int, whole(1, 100)]
    ) -> None:
        super().__init__()
        self.output_dim = dim
        self.embedding = nn.Embedding(vocab_size, dim)
        self.positions = nn.Parameter(torch.randn(num_heads, num_tokens, dim) * dim**-0.5)
        self.linear = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def initial_state(self, batch: int) -> Tensor:
        """Return the initial state, (B, N): the last N tokens, all BLANK_ID."""
        return torch.full((batch, self.positions.shape[1]), BLANK_ID, device=self.positions.device)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take the next tokens, (B,), and the state; return the output, (B, P), and the next state."""
        state = torch.cat([state[:, 1:], tokens[:, None]], dim=1)
        return self._average(state), state

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, U) to (B, U + 1, P): an output before the first token and after each token."""
        before = self.initial_state(len(tokens))
        return self._average(torch.cat([before, tokens], dim=1).unfold(1, before.shape[1], 1))

    def _average(self, tokens: Tensor) -> Tensor:
        """Map the last tokens (..., N) to the output (..., P)."""
        embedded = self.embedding(tokens)  # (..., N, P)
        weights = torch.einsum("...np,hnp->...n", embedded, self.positions) / self.positions[..., 0].numel()
        averaged = torch.einsum("...n,...np->...p", weights, embedded)
        return F.silu(self.norm(self.linear(averaged)))
