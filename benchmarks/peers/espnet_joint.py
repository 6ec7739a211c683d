"""ESPnet: beam search of an attention decoder with CTC prefix scores, with the weights of an asr model."""

from collections.abc import Callable

import torch
from espnet.nets.batch_beam_search import BatchBeamSearch
from espnet.nets.scorers.ctc import CTCPrefixScorer
from espnet2.asr.ctc import CTC
from espnet2.asr.decoder.transformer_decoder import TransformerDecoder
from torch import Tensor, nn

from asr.components.head.ctc_attention import CTCAttention
from asr.interfaces import BOUNDARY_ID


def make(
    head: CTCAttention, beam_size: int, tokens_per_step: int, ctc_weight: float
) -> Callable[[Tensor, Tensor], list[list[int]]]:
    """Return a search that maps encoder_out (B, T', D) and lengths (B,) to tokens, one utterance at a time."""
    source_decoder = head.token_decoder
    vocab_size, dim = source_decoder.embedding.weight.shape
    first = source_decoder.blocks[0]
    decoder = TransformerDecoder(
        vocab_size,
        dim,
        source_decoder.num_heads,
        linear_units=first.linear1.out_features,
        num_blocks=len(source_decoder.blocks),
    )
    ctc = CTC(vocab_size, dim)
    ctc.ctc_lo.load_state_dict(head.ctc.linear.state_dict())
    decoder.embed[0].load_state_dict(source_decoder.embedding.state_dict())
    for block, source in zip(decoder.decoders, source_decoder.blocks, strict=True):
        _copy_attention(block.self_attn, source.self_attention)
        _copy_attention(block.src_attn, source.cross_attention)
        block.feed_forward.w_1.load_state_dict(source.linear1.state_dict())
        block.feed_forward.w_2.load_state_dict(source.linear2.state_dict())
        for norm, branch in zip(
            (block.norm1, block.norm2, block.norm3), (source.residual1, source.residual2, source.residual3), strict=True
        ):
            _copy_norm(norm, branch.norm)
    _copy_norm(decoder.after_norm, source_decoder.last)
    decoder.output_layer.load_state_dict(source_decoder.linear.state_dict())
    search = BatchBeamSearch(
        scorers={"decoder": decoder.eval(), "ctc": CTCPrefixScorer(ctc=ctc.eval(), eos=BOUNDARY_ID)},
        weights={"decoder": 1 - ctc_weight, "ctc": ctc_weight},
        beam_size=beam_size,
        vocab_size=vocab_size,
        sos=BOUNDARY_ID,
        eos=BOUNDARY_ID,
        pre_beam_ratio=tokens_per_step / beam_size,
        pre_beam_score_key="decoder",
    ).eval()

    def decode(encoder_out: Tensor, lengths: Tensor) -> list[list[int]]:
        tokens = []
        for frames, length in zip(encoder_out, lengths.tolist(), strict=True):
            best, *_ = search(x=frames[:length])
            tokens.append([token for token in best.yseq.tolist() if token != BOUNDARY_ID])
        return tokens

    return decode


def _copy_attention(target: nn.Module, source: nn.Module) -> None:
    with torch.no_grad():
        target.linear_q.load_state_dict(source.query.state_dict())
        target.linear_out.load_state_dict(source.output.state_dict())
        for linear, part in ((target.linear_k, 0), (target.linear_v, 1)):
            linear.weight.copy_(source.key_value.weight.chunk(2)[part])
            linear.bias.copy_(source.key_value.bias.chunk(2)[part])


def _copy_norm(target: nn.LayerNorm, source: nn.LayerNorm) -> None:
    target.load_state_dict(source.state_dict())
    target.eps = source.eps
