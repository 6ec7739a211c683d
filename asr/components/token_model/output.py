"""The embedding of tokens for all token models; its matrix is also the matrix of the output layer."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TiedEmbedding(nn.Module):
    """Embed tokens, and predict them with the same matrix.

    *Source*: Press and Wolf 2017, arXiv:1608.05859.

    Args:
        vocab_size: V.
        dim: D.
    """

    def __init__(self, vocab_size: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, dim))
        nn.init.normal_(self.weight, std=dim**-0.5)  # so that logits initially have the variance of their input
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed tokens with a variance of about 1, (B, U) to (B, U, D)."""
        return F.embedding(tokens, self.weight) * math.sqrt(self.weight.shape[1])

    def log_probs(self, x: Tensor) -> Tensor:
        """Compute log_probs, (B, U, D) to (B, U, V), in float32 or a more precise type."""
        logits = F.linear(x, self.weight, self.bias)
        return F.log_softmax(logits, dim=-1, dtype=None if logits.dtype.itemsize >= 4 else torch.float32)
