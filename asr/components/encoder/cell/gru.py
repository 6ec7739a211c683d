"""Gated recurrent units."""

from torch import Tensor, nn

from asr.base.kernels.recurrent import recur


class GRU(nn.Module):
    """A GRU layer that runs from the first frame to the last.

    *Source*: Cho et al. 2014, arXiv:1406.1078. This is torch's GRU: the reset gate is applied after the matrix product.

    Args:
        input_dim: dimension of each frame.
        output_dim: dimension of the state at each frame.
    """

    layer: type[nn.GRU | nn.LSTM] = nn.GRU

    def __init__(self, input_dim: int, output_dim: int) -> None:
        super().__init__()
        self.rnn = self.layer(input_dim, output_dim, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T', input_dim) to (B, T', output_dim)."""
        return recur(self.rnn, x)
