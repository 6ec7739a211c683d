"""SpeechBrain: Conformer blocks with RelPosMHAXL attention, and LayerNorm instead of BatchNorm in the convolution."""

from speechbrain.lobes.models.transformer.Conformer import ConformerEncoder
from speechbrain.nnet.attention import RelPosEncXL
from torch import Tensor

from asr.lengths import padding_mask
from benchmarks.nets import Peer, Shape


def blocks(shape: Shape) -> Peer:
    """Make the encoder and its positional encoding; it has one more LayerNorm than asr's, after the last block."""
    positions = RelPosEncXL(shape.dim)
    encoder = ConformerEncoder(
        num_layers=shape.num_layers,
        d_model=shape.dim,
        d_ffn=shape.feed_forward_dim,
        nhead=shape.num_heads,
        kernel_size=shape.kernel_size,
        dropout=shape.dropout,
    )

    def run(x: Tensor, lengths: Tensor) -> Tensor:
        padding = padding_mask(lengths, x.shape[1])
        encoder_out, _ = encoder(x, src_key_padding_mask=padding, pos_embs=positions(x))
        return encoder_out

    return Peer([positions, encoder], encoder.layers, run)
