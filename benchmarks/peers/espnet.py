"""ESPnet: its Conformer's blocks with the newer of its two relative attentions, which is written by hand."""

from espnet2.asr.encoder.conformer_encoder import ConformerEncoder
from torch import Tensor, nn

from benchmarks.nets import Shape


class Blocks(nn.Module):
    """The encoder without front-end; it has one LayerNorm more, behind the last block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.encoder = ConformerEncoder(
            input_size=shape.dim,
            output_size=shape.dim,
            attention_heads=shape.num_heads,
            linear_units=shape.feed_forward_dim,
            num_blocks=shape.num_layers,
            dropout_rate=shape.dropout,
            positional_dropout_rate=0.0,
            attention_dropout_rate=shape.dropout,
            input_layer=None,
            macaron_style=True,
            rel_pos_type="latest",
            cnn_module_kernel=shape.kernel_size,
        )
        self.layers = self.encoder.encoders

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(B, T', D), (B,) to (B, T', D)."""
        return self.encoder(x, lengths)[0]
