"""A prediction network of gated recurrent units."""

from torch import Tensor, nn

from asr.base.settings.rule import Dim, Layers, Probability
from asr.interfaces import BLANK_ID


class GRUPredictor(nn.Module):
    """GRU layers over embedded tokens, with three quarters of the weights of an LSTM.

    *Source*: GRU: Cho et al. 2014, arXiv:1406.1078; prediction network: Graves 2012, arXiv:1211.3711, section 2.2.

    Args:
        dim: P, dimension of the embedding and of each layer.
        num_layers: number of GRU layers.
        dropout: dropout of the output of each layer.
    """

    def __init__(self, vocab_size: int, *, dim: Dim, num_layers: Layers, dropout: Probability) -> None:
        super().__init__()
        self.output_dim = dim
        self.embedding = nn.Embedding(vocab_size, dim)
        self.units = nn.GRU(dim, dim, num_layers, batch_first=True, dropout=dropout if num_layers > 1 else 0.0)
        self.dropout = nn.Dropout(dropout)

    def initial_state(self, batch: int) -> Tensor:
        """Return the initial state, (B, L, P): zeros for the output of each layer."""
        return self.embedding.weight.new_zeros(batch, self.units.num_layers, self.output_dim)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take the next tokens, (B,), and the state; return the output, (B, P), and the next state."""
        out, units = self.units(self.embedding(tokens[:, None]), state.transpose(0, 1).contiguous())
        return self.dropout(out[:, 0]), units.transpose(0, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, U) to (B, U + 1, P): an output before the first token and after each token."""
        begun = nn.functional.pad(tokens, (1, 0), value=BLANK_ID)
        out, _ = self.units(self.embedding(begun))
        return self.dropout(out)
