"""The Transformer-XL as a language model."""

from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.base.kernels.positions import sinusoids
from asr.base.settings.rule import Dim, FeedForwardFactor, Heads, Layers, Probability, whole
from asr.components.encoder.block.residual.pre_norm import PreNorm
from asr.components.encoder.block.transformer_xl_block import TransformerXLBlock
from asr.components.encoder.stack import check_heads
from asr.components.token_model.output import TiedEmbedding
from asr.interfaces import State


class TransformerXLTokenModel(nn.Module):
    """Blocks of self-attention over the last tokens, which process a text segment by segment.

    A token attends to itself and to the `memory` tokens before it, in its segment or in earlier segments. Each block
    stores its inputs for these tokens, without gradient. So the segmentation of a text changes no output, and each
    block extends the context by `memory` tokens.

    *Source*: Dai et al. 2019, arXiv:1901.02860, section 3.

    *Differs from the paper*: all tokens attend to equal numbers of tokens, as in the authors' code with `same_length`;
    LayerNorm precedes each sub-layer; each layer has separate `u` and `v`; the softmax is not adaptive.

    Args:
        vocab_size: V.
        dim: D.
        num_layers: L.
        num_heads: attention heads; must divide D.
        feed_forward_factor: as in the encoder `TransformerXL`.
        dropout: of each residual branch, of the feed-forward activation, of the attention weights, of the embedding
            and of the last block's output.
        segment: number of tokens computed at once; gradients do not cross the borders of segments.
        memory: number of earlier tokens to which a token attends.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        dim: Dim,
        num_layers: Layers,
        num_heads: Heads,
        feed_forward_factor: FeedForwardFactor,
        dropout: Probability,
        segment: Annotated[int, whole(1, 100_000)],
        memory: Annotated[int, whole(1, 100_000)],
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads, "token_model", "token_model")
        self.vocab_size = vocab_size
        self.segment = segment
        self.memory = memory
        self.embedding = TiedEmbedding(vocab_size, dim)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            TransformerXLBlock(
                dim,
                num_heads=num_heads,
                feed_forward_factor=feed_forward_factor,
                dropout=dropout,
                activation=nn.ReLU,
                residual=PreNorm,
            )
            for _ in range(num_layers)
        )
        self.norm_output = PreNorm.last(dim)

    def initial_state(self, batch: int) -> State:
        """Return an empty memory: the blocks' inputs for M = 0 tokens, (B, L, M, D), and numbers of tokens, (B,)."""
        weight = self.embedding.weight
        given = weight.new_zeros(batch, len(self.blocks), 0, weight.shape[1])
        return {"given": given, "lengths": torch.zeros(batch, dtype=torch.int64, device=weight.device)}

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Return log_probs (B, U, V) of the token after each of `tokens` (B, U), and the state after all `tokens`."""
        log_probs = []
        for part in tokens.split(self.segment, dim=1):
            out, state = self._step(part, state)
            log_probs.append(out)
        return torch.cat(log_probs, dim=1), state

    def _step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Process a segment."""
        before, lengths = state["given"], state["lengths"]
        queries, remembered = tokens.shape[1], before.shape[2]
        x = self.dropout(self.embedding(tokens))  # (B, Q, D)
        distances = torch.arange(remembered + queries - 1, -queries, -1, device=x.device)
        positions = sinusoids(distances, x.shape[2]).to(x.dtype)  # (2 Q + M - 1, D)
        hidden = self._hidden(queries, remembered, lengths)
        given = []
        for block, memory in zip(self.blocks, before.unbind(dim=1), strict=True):
            given.append(x.detach())
            x = block(x, memory, positions, hidden)
        log_probs = self.embedding.log_probs(self.dropout(self.norm_output(x)))
        stored = torch.cat([before, torch.stack(given, dim=1)], dim=2)  # (B, L, M + Q, D)
        stored = stored[:, :, max(0, stored.shape[2] - self.memory) :]
        return log_probs, {"given": stored, "lengths": (lengths + queries).clamp(max=self.memory)}

    def _hidden(self, queries: int, remembered: int, lengths: Tensor) -> Tensor:
        """Return a mask (B, Q, M + Q): True for keys after the query, before its context, or in the memory padding."""
        key = torch.arange(remembered + queries, device=lengths.device)
        query = key[remembered:, None]
        unseen = (key > query) | (key < query - self.memory)  # (Q, M + Q)
        return unseen | (key < remembered - lengths[:, None, None])

    @staticmethod
    def join(states: Sequence[State]) -> State:
        """Concatenate states into one batch, in the given order; pad shorter memories with zeros, which are masked."""
        longest = max(state["given"].shape[2] for state in states)
        given = [F.pad(state["given"], (0, 0, longest - state["given"].shape[2], 0)) for state in states]
        return {"given": torch.cat(given), "lengths": torch.cat([state["lengths"] for state in states])}
