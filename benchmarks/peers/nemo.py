"""NVIDIA NeMo: Conformer blocks with torch's SDPA."""

from nemo.collections.asr.modules.conformer_encoder import ConformerEncoder
from torch import Tensor, nn

from benchmarks.nets import Peer, Shape


def blocks(shape: Shape) -> Peer:
    """Make the encoder without its front-end."""
    encoder = ConformerEncoder(
        feat_in=shape.dim,
        n_layers=shape.num_layers,
        d_model=shape.dim,
        subsampling=None,
        ff_expansion_factor=shape.feed_forward_dim // shape.dim,
        n_heads=shape.num_heads,
        xscaling=False,
        conv_kernel_size=shape.kernel_size,
        dropout=shape.dropout,
        dropout_pre_encoder=0.0,  # the front-end has its own dropout
        dropout_emb=0.0,
        dropout_att=shape.dropout,
        use_pytorch_sdpa=True,
    )
    encoder.pre_encode = nn.Identity()

    def run(x: Tensor, lengths: Tensor) -> Tensor:
        encoder_out, _ = encoder(audio_signal=x, length=lengths, bypass_pre_encode=True)
        return encoder_out.transpose(1, 2)

    return Peer([encoder], encoder.layers, run)
