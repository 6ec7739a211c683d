"""torchaudio: Conformer blocks without positions in attention and without masking of padding in the convolution."""

from torchaudio.models import Conformer

from benchmarks.nets import Peer, Shape


def blocks(shape: Shape) -> Peer:
    """Make the whole Conformer; torchaudio's has no front-end."""
    encoder = Conformer(
        input_dim=shape.dim,
        num_heads=shape.num_heads,
        ffn_dim=shape.feed_forward_dim,
        num_layers=shape.num_layers,
        depthwise_conv_kernel_size=shape.kernel_size,
        dropout=shape.dropout,
    )
    return Peer([encoder], encoder.conformer_layers, lambda x, lengths: encoder(x, lengths)[0])
