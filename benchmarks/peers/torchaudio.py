"""torchaudio: its Conformer's blocks, whose attention knows no positions and whose convolution masks no padding."""

from torch import Tensor, nn
from torchaudio.models import Conformer

from benchmarks.nets import Shape


class Blocks(nn.Module):
    """The whole Conformer: it has no front-end."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.encoder = Conformer(
            input_dim=shape.dim,
            num_heads=shape.num_heads,
            ffn_dim=shape.feed_forward_dim,
            num_layers=shape.num_layers,
            depthwise_conv_kernel_size=shape.kernel_size,
            dropout=shape.dropout,
        )
        self.layers = self.encoder.conformer_layers

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(B, T', D), (B,) to (B, T', D)."""
        return self.encoder(x, lengths)[0]
