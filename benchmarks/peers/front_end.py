"""The common front-end of the peers: two full 3x3 convolutions and a linear layer, as in all these toolkits."""

from torch import Tensor, nn


class FrontEnd(nn.Module):
    """Subsample features (B, T, F) by 4 in time to (B, T', D); padding is not masked."""

    def __init__(self, input_dim: int, num_channels: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, num_channels, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(num_channels, num_channels, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.linear = nn.Linear(num_channels * ((input_dim + 3) // 4), dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map features (B, T, F) and lengths (B,) to (B, T', D) and its lengths (B,)."""
        x = self.convolutions(features[:, None])  # (B, C, T', F / 4)
        return self.dropout(self.linear(x.transpose(1, 2).flatten(2))), (lengths + 3) // 4
