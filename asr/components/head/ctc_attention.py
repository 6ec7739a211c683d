"""A CTC head and an attention decoder that share an encoder."""

from collections.abc import Callable
from typing import Annotated, Any

from torch import Tensor, nn

from asr.base.settings.rule import FeedForwardFactor, Heads, Layers, Probability, above
from asr.components.head.ctc import CTC
from asr.components.head.token_decoder import TransformerDecoder
from asr.errors import InputError
from asr.interfaces import NO_TAPS, BlockDims, Decoders, Encoded, Targets
from asr.lengths import Lengths


class CTCAttention(nn.Module):
    """Joint CTC/attention: a Transformer decoder, and a CTC loss that enforces monotonic alignment.

    *Source*: Kim et al. 2017, arXiv:1609.06773; the decoder: Vaswani et al. 2017, arXiv:1706.03762, with label
    smoothing (section 5.4) over the whole vocabulary.

    Args:
        output_dim: D, also the decoder's dimension.
        vocab_size: V, including the blank, whose id begins and ends the decoder's sequences.
        num_layers: number of decoder blocks.
        num_heads: number of attention heads of the decoder; must divide D.
        feed_forward_factor: inner dimension of the decoder's feed-forward sub-layers, as a multiple of D.
        dropout: dropout of the decoder's input, residual branches, feed-forward activations and attention weights.
        label_smoothing: fraction of the target probability that is spread over the whole vocabulary.
        ctc_weight: weight of the CTC loss; the attention loss has weight 1 - ctc_weight.
        residual: makes a residual connection of the decoder, given D and dropout.
    """

    loss_names = ("ctc", "attention")
    taps = NO_TAPS
    decoders = Decoders(greedy=("greedy",), beam=("beam", "joint_beam", "attention_rescoring"))
    views = 1

    def __init__(
        self,
        output_dim: int,
        block_dims: BlockDims,
        vocab_size: int,
        *,
        num_layers: Layers,
        num_heads: Heads,
        feed_forward_factor: FeedForwardFactor,
        dropout: Probability,
        label_smoothing: Probability,
        ctc_weight: Annotated[float, above(0, 1)],
        residual: Callable[[int, float], Any],
    ) -> None:
        super().__init__()
        if output_dim % num_heads or output_dim % 2:
            must = "encoder.dim must be even and a multiple of head.num_heads"
            raise InputError(f"{must}; got dim={output_dim}, num_heads={num_heads}.")
        self.ctc = CTC(output_dim, block_dims, vocab_size)
        self.token_decoder = TransformerDecoder(
            output_dim,
            vocab_size=vocab_size,
            num_layers=num_layers,
            num_heads=num_heads,
            feed_forward_dim=round(feed_forward_factor * output_dim),
            dropout=dropout,
            residual=residual,
        )
        self.label_smoothing = label_smoothing
        self.ctc_weight = ctc_weight
        self.min_frames = self.ctc.min_frames

    @property
    def frame_head(self) -> CTC:
        """The CTC head."""
        return self.ctc

    def restrict(self, allowed: Tensor) -> None:
        """Restrict both output layers to the allowed tokens, (V,)."""
        self.ctc.restrict(allowed)
        self.token_decoder.mask.restrict(allowed)

    def losses(self, encoded: Encoded, targets: Targets) -> dict[str, Tensor]:
        """Compute the weighted loss of each utterance and its two parts, (B,) each; arguments as in `CTC`."""
        ctc = self.ctc.losses(encoded, targets)["loss"]
        memory = self.token_decoder.remember(encoded.out, encoded.lengths)
        forced = self.token_decoder.force_all(targets["tokens"], targets["token_lengths"], memory)
        log_probs, next_tokens, padding = forced
        target = log_probs.gather(2, next_tokens[:, :, None])[:, :, 0]  # (B, U + 1)
        smoothed = (1 - self.label_smoothing) * target + self.label_smoothing * log_probs.mean(dim=2)
        attention = -smoothed.masked_fill(padding, 0.0).sum(dim=1)
        loss = self.ctc_weight * ctc + (1 - self.ctc_weight) * attention
        return {"loss": loss, "ctc": ctc, "attention": attention}

    def cells(self, frames: Lengths, tokens: Lengths) -> Lengths:
        """Number of elements of the CTC's and decoder's log_probs and of one block's cross-attention weights."""
        vocab_size, num_heads = self.ctc.linear.out_features, self.token_decoder.num_heads
        return (frames + tokens + 1) * vocab_size + (tokens + 1) * frames * num_heads
