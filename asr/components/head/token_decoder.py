"""The Transformer decoder, which predicts each token from the tokens before it and all encoder frames."""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.base.kernels.fused_attention import fused_attention
from asr.base.kernels.positions import sinusoids
from asr.base.kernels.token_mask import TokenMask
from asr.interfaces import BOUNDARY_ID, Cache, Forced, Memory
from asr.lengths import padding_mask

Residual = Callable[[int, float], Any]  # makes a residual connection, given D and dropout


class TransformerDecoder(nn.Module):
    """Blocks of masked self-attention over tokens, cross-attention to encoder frames, and feed-forward.

    It stores no state between calls. The encoder's output is passed as a `Memory`, the earlier tokens as a `Cache`, and
    a call returns the cache extended by the new tokens. Training passes an empty cache and all tokens at once. Tokens
    need no padding mask, because padding comes after them and self-attention is causal.

    *Source*: Vaswani et al. 2017, arXiv:1706.03762, section 3. *Differs from the paper*: the output layer does not
    share the weights of the embedding.

    Shapes: N sequences of U tokens; the N / B sequences of an utterance are consecutive.

    Args:
        dim: D.
        vocab_size: V; `BOUNDARY_ID` begins and ends a sequence.
        num_layers: number of blocks.
        num_heads: H; must divide D.
        feed_forward_dim: inner dimension of the feed-forward sub-layer.
        dropout: dropout of the input, each residual branch, the feed-forward activations and the attention weights.
        residual: makes a residual connection.
    """

    def __init__(
        self,
        dim: int,
        vocab_size: int,
        num_layers: int,
        num_heads: int,
        feed_forward_dim: int,
        dropout: float,
        residual: Residual,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.embedding = nn.Embedding(vocab_size, dim)
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)  # scale 1, like the sinusoids, after the factor sqrt(D)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            DecoderBlock(dim, num_heads, feed_forward_dim, dropout, residual) for _ in range(num_layers)
        )
        self.last: nn.Module = cast(Any, self.blocks[0]).residual1.last(dim)
        self.linear = nn.Linear(dim, vocab_size)
        self.mask = TokenMask()

    def remember(self, encoder_out: Tensor, lengths: Tensor) -> Memory:
        """Compute keys and values of encoder frames (B, T', D), (B,); an empty utterance gets one frame of zeros."""
        encoder_out = encoder_out.masked_fill(padding_mask(lengths, encoder_out.shape[1])[:, :, None], 0.0)
        padding = padding_mask(lengths.clamp(min=1), encoder_out.shape[1])
        return Memory([cast(Any, block).cross_attention.remember(encoder_out) for block in self.blocks], padding)

    def start(self, number: int) -> Cache:
        """Make the cache of `number` sequences before their first token."""
        _, dim = self.embedding.weight.shape
        empty = self.embedding.weight.new_zeros(number, 2, self.num_heads, 0, dim // self.num_heads)
        return [empty] * len(self.blocks)

    def forward(self, tokens: Tensor, memory: Memory, cache: Cache) -> tuple[Tensor, Cache]:
        """Predict the token after each of the given tokens.

        Args:
            tokens: (N, U), which follow the tokens of the cache; the first token of a sequence is `BOUNDARY_ID`.
            memory: memory of the B utterances.
            cache: cache of the N sequences.

        Returns:
            log_probs (N, U, V), given that no masked token is written, and the cache extended by `tokens`.
        """
        log_probs, grown = self._all_log_probs(tokens, memory, cache)
        return self.mask.log_probs(log_probs), grown

    def _all_log_probs(self, tokens: Tensor, memory: Memory, cache: Cache) -> tuple[Tensor, Cache]:
        past, dim = cache[0].shape[3], self.embedding.embedding_dim
        positions = torch.arange(past, past + tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) * math.sqrt(dim)  # (N, U, D)
        x = self.dropout(x + sinusoids(positions, dim).to(x.dtype))
        seen = torch.arange(past + tokens.shape[1], device=tokens.device) <= positions[:, None]  # (U, P + U)
        grown: Cache = []
        for block, keys_values, cached in zip(self.blocks, memory.keys_values, cache, strict=True):
            x, cached = block(x, seen, cached, keys_values, memory.padding)
            grown.append(cached)
        logits = self.linear(self.last(x))
        return F.log_softmax(logits, dim=-1, dtype=None if logits.dtype.itemsize >= 4 else torch.float32), grown

    def force(self, tokens: Tensor, token_lengths: Tensor, memory: Memory) -> Forced:
        """Predict tokens (N, U), (N,) and the end of each sequence in one pass, given the correct preceding tokens."""
        forced = self.force_all(tokens, token_lengths, memory)
        return forced._replace(log_probs=self.mask.log_probs(forced.log_probs))

    def force_all(self, tokens: Tensor, token_lengths: Tensor, memory: Memory) -> Forced:
        """Predict as `force` without a mask, as losses do."""
        padding = padding_mask(token_lengths, tokens.shape[1])
        padded = F.pad(tokens.masked_fill(padding, BOUNDARY_ID), (1, 1), value=BOUNDARY_ID)  # (N, U + 2)
        log_probs, _ = self._all_log_probs(padded[:, :-1], memory, self.start(len(tokens)))
        return Forced(log_probs, padded[:, 1:], padding_mask(token_lengths + 1, tokens.shape[1] + 1))


class DecoderBlock(nn.Module):
    """Self-attention, cross-attention to encoder frames and feed-forward, each with a residual connection."""

    def __init__(self, dim: int, num_heads: int, feed_forward_dim: int, dropout: float, residual: Residual) -> None:
        super().__init__()
        self.residual1, self.residual2, self.residual3 = (residual(dim, dropout) for _ in range(3))
        self.self_attention = MultiHeadAttention(dim, num_heads, dropout)
        self.cross_attention = MultiHeadAttention(dim, num_heads, dropout)
        self.linear1 = nn.Linear(dim, feed_forward_dim)
        self.dropout = Dropout(dropout)
        self.linear2 = nn.Linear(feed_forward_dim, dim)

    def forward(
        self, x: Tensor, seen: Tensor, cached: Tensor, keys_values: Tensor, padding: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run the block over U tokens after P cached tokens.

        Args:
            x: (N, U, D).
            seen: True where a token attends to another, (U, P + U).
            cached: keys and values of the P tokens, (N, 2, H, P, D / H).
            keys_values: keys and values of the encoder frames, (B, 2, H, T', D / H).
            padding: padding of the encoder frames, (B, T').

        Returns:
            (N, U, D), and keys and values of P + U tokens.
        """
        inner = self.residual1.enter(x)
        cached = torch.cat([cached, self.self_attention.remember(inner)], dim=3)  # (N, 2, H, P + U, D / H)
        x = self.residual1.leave(x, self.self_attention(inner, cached, seen))
        # (B, N / B * U, D): all sequences of an utterance attend to its frames
        inner = self.residual2.enter(x).reshape(len(padding), -1, x.shape[2])
        branch = self.cross_attention(inner, keys_values, ~padding[:, None, None, :])
        x = self.residual2.leave(x, branch.reshape(x.shape))
        hidden = self.dropout(F.relu(self.linear1(self.residual3.enter(x))))
        return self.residual3.leave(x, self.linear2(hidden)), cached


class MultiHeadAttention(nn.Module):
    """Attention (arXiv:1706.03762, section 3.2.2) with separately computed keys and values, which can be cached."""

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout  # probability for the attention weights
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)

    def remember(self, x: Tensor) -> Tensor:
        """Compute the keys and values of x (B, T, D): (B, 2, H, T, D / H)."""
        return self.key_value(x).unflatten(-1, (2, self.num_heads, -1)).permute(0, 2, 3, 1, 4)

    def forward(self, x: Tensor, keys_values: Tensor, seen: Tensor) -> Tensor:
        """Attend from x (B, U, D) to the keys and values of T positions; `seen` is broadcast to (B, H, U, T)."""
        query = self.query(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, H, U, D / H)
        key, value = keys_values.unbind(dim=1)
        out = fused_attention(query, key, value, seen, dropout=self.dropout if self.training else 0.0)
        return self.output(out.transpose(1, 2).flatten(2))
