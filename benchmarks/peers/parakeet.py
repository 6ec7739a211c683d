"""Hugging Face transformers: Parakeet's blocks with torch's SDPA, which have no dropout on residual branches."""

from torch import Tensor, nn
from transformers import ParakeetEncoder, ParakeetEncoderConfig

from asr.lengths import padding_mask
from benchmarks.nets import NUM_MEL_BINS, Peer, Shape


def blocks(shape: Shape) -> Peer:
    """Make the encoder's blocks and positional encoding, without its front-end."""
    encoder = ParakeetEncoder(_config(shape, shape.num_layers))

    def run(x: Tensor, lengths: Tensor) -> Tensor:
        valid = ~padding_mask(lengths, x.shape[1])
        mask = (valid[:, :, None] & valid[:, None, :])[:, None]  # (B, 1, T', T'), as in ParakeetEncoder
        positions = encoder.encode_positions(x)
        for layer in encoder.layers:
            x = layer(x, attention_mask=mask, position_embeddings=positions)
        return x

    return Peer([encoder.encode_positions, encoder.layers], encoder.layers, run)


class DepthwiseFrontEnd(nn.Module):
    """Parakeet's front-end with asr's dropout: subsamples by 8, and masks the padding before each convolution."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.subsampling = ParakeetEncoder(_config(shape, 0)).subsampling
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map features (B, T, F) and lengths (B,) to (B, T', D) and its lengths (B,)."""
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
        dropout=0.0,  # applies to the front-end's output, which has its own dropout
        dropout_positions=0.0,
        layerdrop=0.0,
        activation_dropout=shape.dropout,
        attention_dropout=shape.dropout,
        attn_implementation="sdpa",
    )
