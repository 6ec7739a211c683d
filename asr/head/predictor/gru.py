"""The prediction network of gated recurrent units."""

from torch import Tensor, nn

from asr.interfaces import BLANK_ID
from asr.settings.rule import Dim, Layers, Probability


class GRUPredictor(nn.Module):
    """Layers of gated recurrent units over embedded tokens: three quarters of an LSTM's weights.

    *Source*: the units: Cho et al. 2014, arXiv:1406.1078; their place: Graves 2012, arXiv:1211.3711, section 2.2.

    Args:
        vocab_size: V; id 0 stands before the first token.
        dim: of the embedding and of each layer.
        num_layers: of units.
        dropout: between the layers, and of what comes out.
    """

    def __init__(self, vocab_size: int, *, dim: Dim, num_layers: Layers, dropout: Probability) -> None:
        super().__init__()
        self.output_dim = dim
        self.embedding = nn.Embedding(vocab_size, dim)
        self.units = nn.GRU(dim, dim, num_layers, batch_first=True, dropout=dropout if num_layers > 1 else 0.0)
        self.dropout = nn.Dropout(dropout)

    def initial_state(self, batch: int) -> Tensor:
        """Outputs of each layer, (B, L, P)."""
        return self.embedding.weight.new_zeros(batch, self.units.num_layers, self.output_dim)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Read a token, (B,); return what comes of it, (B, P), and the next state."""
        out, units = self.units(self.embedding(tokens[:, None]), state.transpose(0, 1).contiguous())
        return self.dropout(out[:, 0]), units.transpose(0, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, U) to what comes of none of them, of the first, and so on, (B, U + 1, P)."""
        begun = nn.functional.pad(tokens, (1, 0), value=BLANK_ID)
        out, _ = self.units(self.embedding(begun))
        return self.dropout(out)
