"""The block of a Zipformer."""

from typing import Annotated, TypeVar

import torch
from torch import Tensor, nn

from asr.base.kernels.positions import compact_positions
from asr.base.kernels.relative_attention import scores_by_key
from asr.base.settings.rule import Dim, Probability, whole
from asr.components.encoder.block.convolution.depthwise_convolution import DepthwiseConvolution
from asr.components.encoder.block.convolution.gated import GatedConvolution
from asr.components.encoder.stack import FeedForward
from asr.components.encoder.zipformer_parts import BiasNorm, Bypass, SwooshL, SwooshR, scaled
from asr.errors import InputError

EvenDim = Annotated[int, whole(2, 65_536)]
# Factors of the initial weights of the last layer of each branch. Small branches keep a new network close to the
# identity, so that it trains without limits on the size of activations.
MIX, FEED_FORWARD, POSITION = 0.05, 0.1, 0.05
Convolution = TypeVar("Convolution", bound=GatedConvolution)


class ZipformerBlock(nn.Module):
    """A block that computes attention weights once and uses them in three modules.

    The modules are, in this order, each with a residual connection: feed-forward, non-linear attention,
    self-attention, convolution, feed-forward; a bypass from the block's input; self-attention, convolution,
    feed-forward; then a norm, and a second bypass from the block's input.

    *Source*: Yao et al. 2023 (Zipformer), arXiv:2310.11230.

    *Differs from the paper*: the only regularisation in training is dropout in the feed-forward modules.

    Args:
        query_head_dim: dimension of a query and of a key in each head.
        value_head_dim: dimension of a value in each head of the self-attention.
        position_head_dim: dimension of a projected distance in each head.
        position_dim: dimension of the encoding of a distance; even.
        dropout: dropout of the activations of the feed-forward modules.

    Raises:
        InputError: `position_dim` is odd, or D is not a multiple of 4.
    """

    stride = 1
    streaming = None

    def __init__(
        self,
        dim: int,
        num_heads: int,
        feed_forward_dim: int,
        kernel_size: int,
        *,
        query_head_dim: Dim,
        value_head_dim: Dim,
        position_head_dim: Dim,
        position_dim: EvenDim,
        dropout: Probability,
    ) -> None:
        super().__init__()
        if position_dim % 2:
            raise InputError(f"encoder.block.position_dim must be even; got {position_dim}.")
        if dim % 4:
            raise InputError(f"encoder.dims must be multiples of 4, for encoder.block=zipformer_block; got {dim}.")
        self.dim, self.position_dim = dim, position_dim
        self.weights = AttentionWeights(dim, num_heads, query_head_dim, position_head_dim, position_dim)
        self.feed_forward1 = _feed_forward(dim, feed_forward_dim * 3 // 4, dropout)
        self.nonlinear_attention = NonlinearAttention(dim)
        self.attention1 = AttentionByWeights(dim, num_heads, value_head_dim)
        self.convolution1 = self.make_convolution(dim, kernel_size)
        self.feed_forward2 = _feed_forward(dim, feed_forward_dim, dropout)
        self.bypass_middle = Bypass(dim)
        self.attention2 = AttentionByWeights(dim, num_heads, value_head_dim)
        self.convolution2 = self.make_convolution(dim, kernel_size)
        self.feed_forward3 = _feed_forward(dim, feed_forward_dim * 5 // 4, dropout)
        self.norm = BiasNorm(dim)
        self.bypass = Bypass(dim)

    def make_convolution(self, dim: int, kernel_size: int) -> GatedConvolution:
        """Make a convolution module."""
        return small_output(DepthwiseConvolution(dim, no_norm, SwooshR, kernel_size=kernel_size, bias=True))

    def positions(self, x: Tensor, earlier: int = 0) -> Tensor:
        """Encode the distances from the frames of x (B, T', D) to all frames, of which `earlier` come before x.

        Shapes: returns (2 T' + earlier - 1, position_dim), by descending distance from T' + earlier - 1 on.
        """
        frames = x.shape[1]
        encodings = compact_positions(frames + earlier, self.position_dim, x.device).to(x.dtype)
        return encodings.narrow(0, 0, 2 * frames + earlier - 1)

    def forward(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """Map x (B, T', D) to (B, T', D); `positions` are those of the method, padding_mask is (B, T')."""
        given, weights = x, self.weights(x, positions, padding_mask)
        x = x + self.feed_forward1(x)
        x = x + self.nonlinear_attention(x, weights[:, :1])
        x = x + self.attention1(x, weights)
        x = x + self.convolution1(x, padding_mask)
        x = x + self.feed_forward2(x)
        x = self.bypass_middle(given, x)
        x = x + self.attention2(x, weights)
        x = x + self.convolution2(x, padding_mask)
        x = x + self.feed_forward3(x)
        return self.bypass(given, self.norm(x))


class AttentionWeights(nn.Module):
    """The weights of attention from every frame to every valid frame, for each head.

    A score is the product of query and key, plus a term of the distance between them. Scores are not divided by the
    square root of the head's dimension; the initial weights are smaller instead.
    """

    def __init__(
        self, dim: int, num_heads: int, query_head_dim: int, position_head_dim: int, position_dim: int
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.sizes = [num_heads * query_head_dim] * 2 + [num_heads * position_head_dim]
        # Queries, keys and queries for distances.
        self.projection = scaled(nn.Linear(dim, sum(self.sizes)), query_head_dim**-0.25)
        self.position = scaled(nn.Linear(position_dim, num_heads * position_head_dim, bias=False), POSITION)

    def forward(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """Map x (B, T', D), encodings of distances and padding_mask (B, T') to (B, H, T', T')."""
        query, key, by_distance = self.project(x)
        return self.weigh(query, key, by_distance, positions, padding_mask[:, None])

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map x (B, T', D) to queries, keys and queries for distances, (B, T', H dim of a head) each."""
        query, key, by_distance = self.projection(x).split(self.sizes, dim=-1)
        return query, key, by_distance

    def weigh(self, query: Tensor, key: Tensor, by_distance: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
        """Compute the weights (B, H, Q, K) of Q queries, the last of K frames.

        Shapes: query (B, Q, D'), key (B, K, D'), by_distance (B, Q, D''), hidden (B, Q or 1, K): True where a query
        must not attend to a key.
        """
        query, key, by_distance = (self._heads(part) for part in (query, key, by_distance))
        distance = self._heads(self.position(positions))  # (H, Q + K - 1, position_head_dim)
        scores = query @ key.transpose(-1, -2) + scores_by_key(by_distance @ distance.transpose(-1, -2))
        # Half of the lowest number: finite, so that an utterance without frames has weights, too.
        return scores.masked_fill(hidden[:, None], torch.finfo(scores.dtype).min / 2).softmax(dim=-1)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)


class AttentionByWeights(nn.Module):
    """Self-attention with attention weights that are already computed."""

    def __init__(self, dim: int, num_heads: int, value_head_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.value = nn.Linear(dim, num_heads * value_head_dim)
        self.output = scaled(nn.Linear(num_heads * value_head_dim, dim), MIX)

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Map x (B, T', D), with weights (B, H, T', T'), to (B, T', D)."""
        return self.mix(self.value(x), weights)

    def mix(self, values: Tensor, weights: Tensor) -> Tensor:
        """Map values (B, K, H dim of a head), with weights (B, H, Q, K), to (B, Q, D)."""
        value = values.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return self.output((weights @ value).transpose(1, 2).flatten(2))


class NonlinearAttention(nn.Module):
    """Attention with the weights of one head, whose input and output are multiplied by functions of the frame."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        inner = dim * 3 // 4
        self.projection = nn.Linear(dim, 3 * inner)
        self.stacked_matrices = {"projection": 3}  # gate of the input, input, gate of the output
        self.output = scaled(nn.Linear(inner, dim), MIX)

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Map x (B, T', D), with the weights of a head (B, 1, T', T'), to (B, T', D)."""
        return self.mix(*self.project(x), weights)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (B, T', D) to values and gates of the output, (B, T', 3/4 D) each."""
        gate, value, output_gate = self.projection(x).chunk(3, dim=-1)
        return value * gate.tanh(), output_gate

    def mix(self, values: Tensor, output_gate: Tensor, weights: Tensor) -> Tensor:
        """Map values (B, K, 3/4 D) and gates (B, Q, 3/4 D), with weights (B, 1, Q, K), to (B, Q, D)."""
        return self.output((weights[:, 0] @ values) * output_gate)


class NoNorm(nn.Module):
    """The identity, in place of the norm of a convolution module."""

    framewise = True

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Return x (B, T', D)."""
        return x


def _feed_forward(dim: int, feed_forward_dim: int, dropout: float) -> FeedForward:
    made = FeedForward(dim, feed_forward_dim, dropout, SwooshL(), bias=True)
    scaled(made.linear2, FEED_FORWARD)
    return made


def no_norm(channels: int) -> NoNorm:
    """Make the norm of a convolution module."""
    return NoNorm()


def small_output(convolution: Convolution) -> Convolution:
    """Reduce the initial weights of the last layer of a convolution module."""
    scaled(convolution.pointwise2, MIX)
    return convolution
