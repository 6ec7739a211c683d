"""Hugging Face transformers: Parakeet's blocks with SDPA; they have no dropout of the residual branches."""

from torch import Tensor, nn
from transformers import ParakeetEncoder, ParakeetEncoderConfig

from asr.lengths import padding_mask
from benchmarks.nets import NUM_MEL_BINS, Peer, Shape


def blocks(shape: Shape) -> Peer:
    """Make the encoder's blocks and positions; its own front-end is not used."""
    encoder = ParakeetEncoder(_config(shape, shape.num_layers))

    def run(x: Tensor, lengths: Tensor) -> Tensor:
        valid = ~padding_mask(lengths, x.shape[1])
        mask = (valid[:, :, None] & valid[:, None, :])[:, None]  # (B, 1, T', T'), as its encoder makes it
        positions = encoder.encode_positions(x)
        for layer in encoder.layers:
            x = layer(x, attention_mask=mask, position_embeddings=positions)
        return x

    return Peer([encoder.encode_positions, encoder.layers], encoder.layers, run)


class DepthwiseFrontEnd(nn.Module):
    """Its own front-end, (B, T, F) to (B, T / 8, D), and our dropout; it masks the padding before each convolution."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.subsampling = ParakeetEncoder(_config(shape, 0)).subsampling
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F), (B,) to (B, T', D), (B,)."""
        x = self.subsampling(features, ~padding_mask(lengths, features.shape[1]))
        return self.dropout(x), (lengths + 7) // 8


def _config(shape: Shape, num_layers: int) -> ParakeetEncoderConfig:
    return ParakeetEncoderConfig(
        hidden_size=shape.dim,
        num_hidden_layers=num_layers,
        num_attention_heads=shape.num_heads,
        intermediate_size=shape.feed_forward_dim,
        conv_kernel_size=shape.kernel_size,
        subsampling_conv_channels=shape.num_channels,
        num_mel_bins=NUM_MEL_BINS,
        dropout=0.0,  # of what the front-end gives, and that has its own
        dropout_positions=0.0,
        layerdrop=0.0,
        activation_dropout=shape.dropout,
        attention_dropout=shape.dropout,
        attn_implementation="sdpa",
    )
