"""NVIDIA NeMo: its Conformer's blocks with SDPA."""

from nemo.collections.asr.modules.conformer_encoder import ConformerEncoder
from torch import Tensor, nn

from benchmarks.nets import Shape


class Blocks(nn.Module):
    """The encoder behind its front-end."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.encoder = ConformerEncoder(
            feat_in=shape.dim,
            n_layers=shape.num_layers,
            d_model=shape.dim,
            subsampling=None,
            ff_expansion_factor=shape.feed_forward_dim // shape.dim,
            n_heads=shape.num_heads,
            xscaling=False,
            conv_kernel_size=shape.kernel_size,
            dropout=shape.dropout,
            dropout_pre_encoder=0.0,  # the front-end has its own
            dropout_emb=0.0,
            dropout_att=shape.dropout,
            use_pytorch_sdpa=True,
        )
        self.encoder.pre_encode = nn.Identity()
        self.layers = self.encoder.layers

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(B, T', D), (B,) to (B, T', D)."""
        encoder_out, _ = self.encoder(audio_signal=x, length=lengths, bypass_pre_encode=True)
        return encoder_out.transpose(1, 2)
