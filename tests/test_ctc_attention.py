"""Joint CTC/attention: the decoder equals torch's, the loss equals plain loops, and decoding can use a cache."""

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asr.base.kernels.positions import sinusoids
from asr.components.head.ctc_attention import CTCAttention
from asr.components.head.token_decoder import DecoderBlock, MultiHeadAttention, TransformerDecoder
from asr.core.build import component
from asr.errors import InputError
from asr.interfaces import BOUNDARY_ID, Encoded
from asr.lengths import padding_mask
from tests.conftest import block_dims, resolved
from tests.refusals import refused
from tests.targets import targets_of

DIM, NUM_HEADS, NUM_LAYERS, VOCAB_SIZE = 12, 3, 2, 6
NORMS = ["pre_norm", "post_norm"]


@cache
def settings_of_head(residual: str) -> dict[str, Any]:
    config: dict[str, Any] = resolved("head=ctc_attention", f"head/residual={residual}")["head"]
    return config


def joint_head(residual: str, **settings: Any) -> CTCAttention:
    """Make a small head in float64; no parameter has its initial value."""
    config = settings_of_head(residual)
    small = {"num_layers": NUM_LAYERS, "num_heads": NUM_HEADS, "feed_forward_factor": 2}
    head: CTCAttention = component("head", {**config, **small, **settings})(DIM, block_dims(DIM), VOCAB_SIZE)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return head.double().eval()


def copy_attention(torchs: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
    torchs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key_value.weight]))
    torchs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key_value.bias]))
    torchs.out_proj.load_state_dict(ours.output.state_dict())


def torchs_decoder(ours: TransformerDecoder, *, norm_first: bool) -> nn.TransformerDecoder:
    """Return torch's decoder with the weights of `ours`."""
    layer = nn.TransformerDecoderLayer(DIM, NUM_HEADS, 2 * DIM, batch_first=True, norm_first=norm_first)
    decoder = nn.TransformerDecoder(layer, NUM_LAYERS, nn.LayerNorm(DIM) if norm_first else None).double().eval()
    with torch.no_grad():
        for theirs, block in zip(decoder.layers, ours.blocks, strict=True):
            assert isinstance(theirs, nn.TransformerDecoderLayer)
            assert isinstance(block, DecoderBlock)
            copy_attention(theirs.self_attn, block.self_attention)
            copy_attention(theirs.multihead_attn, block.cross_attention)
            for name in ("linear1", "linear2"):
                getattr(theirs, name).load_state_dict(getattr(block, name).state_dict())
            for number in (1, 2, 3):
                norm = getattr(block, f"residual{number}").norm
                getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())
        if decoder.norm is not None:
            decoder.norm.load_state_dict(ours.last.state_dict())
    return decoder


@pytest.mark.parametrize("residual", NORMS)
def test_the_decoder_equals_torchs_with_the_same_weights(residual: str) -> None:
    ours = joint_head(residual).token_decoder
    theirs = torchs_decoder(ours, norm_first=residual == "pre_norm")
    frames, lengths = torch.randn(3, 7, DIM, dtype=torch.float64), torch.tensor([7, 4, 1])
    tokens = torch.randint(VOCAB_SIZE, (3, 5))
    embedded = ours.embedding.weight[tokens] * math.sqrt(DIM) + sinusoids(torch.arange(5), DIM)
    mask = nn.Transformer.generate_square_subsequent_mask(5) == -math.inf
    out = theirs(embedded, frames, tgt_mask=mask, memory_key_padding_mask=padding_mask(lengths, 7))
    expected = (out @ ours.linear.weight.T + ours.linear.bias).log_softmax(dim=-1)
    actual, _ = ours(tokens, ours.remember(frames, lengths), ours.start(3))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)  # float64 rounding


@pytest.mark.parametrize("residual", NORMS)
def test_decoding_token_by_token_with_a_cache_equals_decoding_all_tokens_together(residual: str) -> None:
    decoder = joint_head(residual).token_decoder
    frames, lengths = torch.randn(2, 7, DIM, dtype=torch.float64), torch.tensor([7, 4])
    memory = decoder.remember(frames, lengths)
    tokens = torch.randint(VOCAB_SIZE, (6, 5))  # three sequences per utterance
    expected, whole = decoder(tokens, memory, decoder.start(6))
    cache, steps = decoder.start(6), []
    for step in tokens[:, :1], tokens[:, 1:2], tokens[:, 2:]:
        log_probs, cache = decoder(step, memory, cache)
        steps.append(log_probs)
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(cache, whole, rtol=0, atol=1e-12)
    for row in range(6):  # each sequence alone
        own = decoder.remember(frames[row // 3, None], lengths[row // 3, None])
        alone, _ = decoder(tokens[row, None], own, decoder.start(1))
        torch.testing.assert_close(alone[0], expected[row], rtol=0, atol=1e-12)


def plain_attention_loss(head: CTCAttention, frames: Tensor, tokens: list[int]) -> float:
    """Sum the cross-entropy between prediction and smoothed target over the tokens and the end, in loops."""
    decoder = head.token_decoder
    length = torch.tensor([len(frames)])
    total = 0.0
    for position, target in enumerate([*tokens, BOUNDARY_ID]):
        before = torch.tensor([[BOUNDARY_ID, *tokens[:position]]])
        log_probs, _ = decoder(before, decoder.remember(frames[None], length), decoder.start(1))
        for token, log_prob in enumerate(log_probs[0, -1].tolist()):
            smoothed = head.label_smoothing / VOCAB_SIZE + (1 - head.label_smoothing) * (token == target)
            total -= smoothed * log_prob
    return total


@torch.no_grad()
def test_the_loss_is_smoothed_cross_entropy_plus_a_share_of_the_ctc_loss() -> None:
    head = joint_head("pre_norm", label_smoothing=0.2, ctc_weight=0.4)
    frames, lengths = torch.randn(3, 9, DIM, dtype=torch.float64), torch.tensor([9, 6, 4])
    texts = [[1, 2, 2, 5], [3], []]
    # 9**9 marks padding, because no token has this number.
    tokens = torch.tensor([[*text, *[9**9] * (6 - len(text))] for text in texts])
    losses = head.losses(Encoded(frames, lengths, {}), targets_of(tokens, torch.tensor([4, 1, 0])))
    ctc = head.ctc.losses(Encoded(frames, lengths, {}), targets_of(tokens, torch.tensor([4, 1, 0])))["loss"]
    for row, text in enumerate(texts):
        attention = plain_attention_loss(head, frames[row, : lengths[row]], text)
        assert float(losses["attention"][row]) == pytest.approx(attention, abs=1e-10)
        assert float(losses["loss"][row]) == pytest.approx(0.4 * float(ctc[row]) + 0.6 * attention, abs=1e-10)


@pytest.mark.parametrize("junk", [float("nan"), float("inf")])
def test_the_content_of_padded_frames_and_tokens_changes_neither_loss_nor_gradient(junk: float) -> None:
    head = joint_head("post_norm")
    frames, lengths = torch.randn(2, 9, DIM, dtype=torch.float64), torch.tensor([9, 5])
    token_lengths = torch.tensor([4, 2])
    results = []
    for filling, token in ((0.0, 0), (junk, -1), (junk, 9**9)):
        out = frames.masked_fill(padding_mask(lengths, 9)[:, :, None], filling).requires_grad_()
        tokens = torch.tensor([[1, 2, 2, 5, token], [3, 4, token, token, token]])
        losses = head.losses(Encoded(out, lengths, {}), targets_of(tokens, token_lengths))
        gradients = torch.autograd.grad(losses["attention"].sum(), [out, *head.token_decoder.parameters()])
        results.append((losses["attention"], gradients))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=0, atol=1e-12)


def test_attention_heads_that_do_not_divide_the_encoder_dimension_are_refused_in_one_line() -> None:
    must = "encoder.dim ... dim=12 ... num_heads=5"
    with refused(InputError, must):
        joint_head("pre_norm", num_heads=5)
