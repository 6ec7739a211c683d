"""SpeechBrain: its Conformer's blocks with RelPosMHAXL; LayerNorm in the place of the convolution's BatchNorm."""

from speechbrain.lobes.models.transformer.Conformer import ConformerEncoder
from speechbrain.nnet.attention import RelPosEncXL
from torch import Tensor, nn

from asr.lengths import padding_mask
from benchmarks.nets import Shape


class Blocks(nn.Module):
    """The encoder and its positions; it has one LayerNorm more, behind the last block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.positions = RelPosEncXL(shape.dim)
        self.encoder = ConformerEncoder(
            num_layers=shape.num_layers,
            d_model=shape.dim,
            d_ffn=shape.feed_forward_dim,
            nhead=shape.num_heads,
            kernel_size=shape.kernel_size,
            dropout=shape.dropout,
        )
        self.layers = self.encoder.layers

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(B, T', D), (B,) to (B, T', D)."""
        padding = padding_mask(lengths, x.shape[1])
        encoder_out, _ = self.encoder(x, src_key_padding_mask=padding, pos_embs=self.positions(x))
        return encoder_out
