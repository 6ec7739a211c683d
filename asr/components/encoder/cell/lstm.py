"""Long short-term memory."""

from torch import Tensor, nn

from asr.base.kernels.recurrent import recur


class LSTM(nn.Module):
    """An LSTM layer that runs from the first frame to the last.

    *Source*: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000. torch's LSTM is used.

    Args:
        input_dim: dimension of each frame.
        output_dim: dimension of the state at each frame.
    """

    def __init__(self, input_dim: int, output_dim: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(input_dim, output_dim, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T', input_dim) to (B, T', output_dim)."""
        return recur(self.rnn, x)
