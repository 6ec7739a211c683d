"""LSTM language model."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.base.kernels.recurrent import run_lstm
from asr.base.settings.rule import Dim, Layers, Probability
from asr.components.token_model.output import TiedEmbedding
from asr.interfaces import State


class LSTMTokenModel(nn.Module):
    """Layers of LSTM cells over embedded tokens.

    *Source*: Sundermeyer et al. 2012, "LSTM neural networks for language modeling". *Differs from the paper*: the
    output layer shares the embedding's matrix, after a linear layer.

    Args:
        vocab_size: V.
        embedding_dim: D, dimension of the embedding.
        dim: H, dimension of each layer.
        num_layers: L.
        dropout: dropout of the embedding, between the layers, and of the last layer's output.
    """

    def __init__(
        self, vocab_size: int, *, embedding_dim: Dim, dim: Dim, num_layers: Layers, dropout: Probability
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.embedding = TiedEmbedding(vocab_size, embedding_dim)
        self.dropout = Dropout(dropout)
        between = dropout if num_layers > 1 else 0.0
        self.cells = nn.LSTM(embedding_dim, dim, num_layers, batch_first=True, dropout=between)
        self.project = nn.Linear(dim, embedding_dim)

    def initial_state(self, batch: int) -> State:
        """Return zeros for outputs and cells of each layer, (B, L, H) each."""
        zeros = self.project.weight.new_zeros(batch, self.cells.num_layers, self.cells.hidden_size)
        return {"outputs": zeros, "cells": zeros}

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Return log_probs (B, U, V) of the token after each of `tokens` (B, U), and the state after all `tokens`."""
        outputs, cells = (state[name].transpose(0, 1).contiguous() for name in ("outputs", "cells"))  # (L, B, H)
        out, (outputs, cells) = run_lstm(
            self.cells, self.dropout(self.embedding(tokens)), (outputs, cells)
        )  # (B, U, H)
        log_probs = self.embedding.log_probs(self.project(self.dropout(out)))
        return log_probs, {"outputs": outputs.transpose(0, 1), "cells": cells.transpose(0, 1)}

    @staticmethod
    def join(states: Sequence[State]) -> State:
        """Concatenate states into one batch, in the given order."""
        return {name: torch.cat([state[name] for state in states]) for name in states[0]}
