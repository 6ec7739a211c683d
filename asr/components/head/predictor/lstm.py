"""A prediction network of LSTM layers."""

from typing import Annotated

import torch
from torch import Tensor, nn

from asr.base.kernels.recurrent import run_lstm, step_lstm
from asr.base.settings.rule import SWITCH, Dim, Layers, Probability
from asr.interfaces import BLANK_ID


class LSTMPredictor(nn.Module):
    """LSTM layers over embedded tokens.

    *Source*: Graves 2012, arXiv:1211.3711, section 2.2. *Differs from the paper*: tokens are embedded.

    Args:
        dim: P, dimension of the embedding and of each layer.
        num_layers: number of LSTM layers.
        dropout: dropout of the output of each layer.
        trains_blank: whether the embedding of id 0 is trained; if not, it remains zero, as in NVIDIA NeMo.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        dim: Dim,
        num_layers: Layers,
        dropout: Probability,
        trains_blank: Annotated[bool, SWITCH],
    ) -> None:
        super().__init__()
        self.output_dim = dim
        self.embedding = nn.Embedding(vocab_size, dim, padding_idx=None if trains_blank else BLANK_ID)
        self.cells = nn.LSTM(dim, dim, num_layers, batch_first=True, dropout=dropout if num_layers > 1 else 0.0)
        self.dropout = nn.Dropout(dropout)

    def initial_state(self, batch: int) -> Tensor:
        """Return the initial state, (B, 2, L, P): zeros for the output and the cell of each layer."""
        return self.embedding.weight.new_zeros(batch, 2, self.cells.num_layers, self.output_dim)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take the next tokens, (B,), and the state; return the output, (B, P), and the next state."""
        outputs, cells = state.permute(1, 2, 0, 3).contiguous()  # in torch's layout, (L, B, P) each
        outputs, cells = step_lstm(self.cells, self.embedding(tokens), outputs, cells)
        return self.dropout(outputs[-1]), torch.stack((outputs, cells)).permute(2, 0, 1, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, U) to (B, U + 1, P): an output before the first token and after each token."""
        begun = nn.functional.pad(tokens, (1, 0), value=BLANK_ID)
        out, _ = run_lstm(self.cells, self.embedding(begun))
        return self.dropout(out)
