"""ESPnet: Conformer blocks with the newer of its two relative attentions, which does not use torch's SDPA."""

from espnet2.asr.encoder.conformer_encoder import ConformerEncoder

from benchmarks.nets import Peer, Shape


def blocks(shape: Shape) -> Peer:
    """Make the encoder without its front-end; it has one more LayerNorm than asr's, after the last block."""
    encoder = ConformerEncoder(
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
    return Peer([encoder], encoder.encoders, lambda x, lengths: encoder(x, lengths)[0])
