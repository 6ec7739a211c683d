"""The decoder of the Transformer: tokens one by one, each from those before it and from all encoder frames."""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.interfaces import BOUNDARY_ID, Cache, Forced, Memory
from asr.kernels.dropout import Dropout
from asr.kernels.fused_attention import fused_attention
from asr.kernels.positions import sinusoids
from asr.lengths import padding_mask

Residual = Callable[[int, float], Any]  # made with D and dropout


class TransformerDecoder(nn.Module):
    """Masked self-attention over tokens, attention to encoder frames, and feed-forward, block by block.

    It keeps nothing between calls: what the encoder gave is a `Memory`, the tokens before are a `Cache`, and a call
    returns the cache with its own tokens added. An empty cache and all tokens at once is the pass of training. Tokens
    need no padding mask: padding stands behind them, where they do not look.

    *Source*: Vaswani et al. 2017, arXiv:1706.03762, section 3. *Differs from the paper*: the output layer has weights
    of its own.

    Shapes: N sequences of U tokens, as many of each of the B utterances, one utterance's behind another's.

    Args:
        dim: D.
        vocab_size: V; `BOUNDARY_ID` begins and ends a sequence.
        num_layers: blocks.
        num_heads: H; must divide D.
        feed_forward_dim: inner dimension of the feed-forward sub-layer.
        dropout: of each residual branch, of the feed-forward activation, of the attention weights, of the input.
        residual: makes a residual branch.
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
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)  # so that, times sqrt(D), it is as large as the sinusoids
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            DecoderBlock(dim, num_heads, feed_forward_dim, dropout, residual) for _ in range(num_layers)
        )
        self.last: nn.Module = cast(Any, self.blocks[0]).residual1.last(dim)
        self.linear = nn.Linear(dim, vocab_size)

    def remember(self, encoder_out: Tensor, lengths: Tensor) -> Memory:
        """Compute keys and values of encoder frames, (B, T', D), (B,); an utterance without any has one of zeros."""
        encoder_out = encoder_out.masked_fill(padding_mask(lengths, encoder_out.shape[1])[:, :, None], 0.0)
        padding = padding_mask(lengths.clamp(min=1), encoder_out.shape[1])
        return Memory([cast(Any, block).cross_attention.remember(encoder_out) for block in self.blocks], padding)

    def start(self, number: int) -> Cache:
        """Make the cache of so many sequences before their first token."""
        _, dim = self.embedding.weight.shape
        empty = self.embedding.weight.new_zeros(number, 2, self.num_heads, 0, dim // self.num_heads)
        return [empty] * len(self.blocks)

    def forward(self, tokens: Tensor, memory: Memory, cache: Cache) -> tuple[Tensor, Cache]:
        """Tokens (N, U), behind those of the cache, to log_probs (N, U, V) of each one's next, and the cache with them.

        The first token of a sequence is `BOUNDARY_ID`.
        """
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
        """Predict each token from those before it, all at once, and the end behind the last one; (N, U), (N,)."""
        padding = padding_mask(token_lengths, tokens.shape[1])
        padded = F.pad(tokens.masked_fill(padding, BOUNDARY_ID), (1, 1), value=BOUNDARY_ID)  # (N, U + 2)
        log_probs, _ = self(padded[:, :-1], memory, self.start(len(tokens)))
        return Forced(log_probs, padded[:, 1:], padding_mask(token_lengths + 1, tokens.shape[1] + 1))


class DecoderBlock(nn.Module):
    """Self-attention, attention to encoder frames and feed-forward, each in a residual branch."""

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
        """(N, U, D), what each token sees (U, P + U), keys and values of P tokens before, those of frames and padding.

        Returns x and keys and values of P + U tokens.
        """
        inner = self.residual1.enter(x)
        cached = torch.cat([cached, self.self_attention.remember(inner)], dim=3)  # (N, 2, H, P + U, D / H)
        x = self.residual1.leave(x, self.self_attention(inner, cached, seen))
        inner = self.residual2.enter(x).reshape(
            len(padding), -1, x.shape[2]
        )  # (B, N / B * U, D): the frames are theirs
        branch = self.cross_attention(inner, keys_values, ~padding[:, None, None, :])
        x = self.residual2.leave(x, branch.reshape(x.shape))
        hidden = self.dropout(F.relu(self.linear1(self.residual3.enter(x))))
        return self.residual3.leave(x, self.linear2(hidden)), cached


class MultiHeadAttention(nn.Module):
    """Attention (arXiv:1706.03762, section 3.2.2) whose keys and values may have been computed before."""

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout  # of the attention weights
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)

    def remember(self, x: Tensor) -> Tensor:
        """(B, T, D) to its keys and values, (B, 2, H, T, D / H)."""
        return self.key_value(x).unflatten(-1, (2, self.num_heads, -1)).permute(0, 2, 3, 1, 4)

    def forward(self, x: Tensor, keys_values: Tensor, seen: Tensor) -> Tensor:
        """(B, U, D), keys and values of T, whether each of U sees them (broadcast to (B, H, U, T)) to (B, U, D)."""
        query = self.query(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, H, U, D / H)
        key, value = keys_values.unbind(dim=1)
        out = fused_attention(query, key, value, seen, dropout=self.dropout if self.training else 0.0)
        return self.output(out.transpose(1, 2).flatten(2))
