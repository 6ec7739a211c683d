"""Long short-term memory."""

from torch import nn

from asr.components.encoder.cell.gru import GRU


class LSTM(GRU):
    """An LSTM layer that runs from the first frame to the last.

    *Source*: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000. torch's LSTM is used.
    """

    layer = nn.LSTM
