"""The Conformer: its block equals that of another implementation, and its sizes equal those in the paper."""

from functools import partial
from typing import Any

import pytest
import torch
from transformers.models.parakeet.configuration_parakeet import ParakeetEncoderConfig
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderBlock

from asr.base.kernels.positions import relative_positions
from asr.components.encoder.block.activation.swish import Swish
from asr.components.encoder.block.attention.relative_attention import RelativeAttention
from asr.components.encoder.block.conformer_block import ConformerBlock
from asr.components.encoder.block.convolution.depthwise_convolution import DepthwiseConvolution
from asr.components.encoder.block.norm.masked_batch_norm import MaskedBatchNorm
from asr.components.encoder.conformer import Conformer
from asr.core.build import component
from asr.errors import InputError
from asr.lengths import padding_mask
from tests.conftest import overridden, resolved
from tests.refusals import refused

DIM, HEADS, FEED_FORWARD_DIM, KERNEL_SIZE = 16, 4, 40, 5

# Names of parameters in transformers and in asr; parameters without a counterpart are omitted.
NAMES = {
    "norm_feed_forward1": "norm_feed_forward1",
    "feed_forward1.linear1": "feed_forward1.linear1",
    "feed_forward1.linear2": "feed_forward1.linear2",
    "norm_self_att": "norm_attention",
    "self_attn.o_proj": "attention.output",
    "self_attn.relative_k_proj": "attention.position",
    "norm_conv": "norm_convolution",
    "conv.pointwise_conv1": "convolution.pointwise1",
    "conv.depthwise_conv": "convolution.depthwise",
    "conv.norm": "convolution.norm",
    "conv.pointwise_conv2": "convolution.pointwise2",
    "norm_feed_forward2": "norm_feed_forward2",
    "feed_forward2.linear1": "feed_forward2.linear1",
    "feed_forward2.linear2": "feed_forward2.linear2",
    "norm_out": "norm_output",
}


def random_block() -> ConformerBlock:
    """Make a block in float64; no parameter or running statistic has its initial value."""
    norm, swish = partial(MaskedBatchNorm, momentum=0.1, eps=1e-5), partial(Swish, beta=1.0)
    block = ConformerBlock(
        DIM,
        num_heads=HEADS,
        feed_forward_factor=FEED_FORWARD_DIM / DIM,
        feed_forward_bias=True,
        dropout=0.0,
        attention=partial(RelativeAttention, bias=True),
        convolution=partial(DepthwiseConvolution, kernel_size=KERNEL_SIZE, bias=True),
        norm=norm,
        activation=swish,
    ).double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        block.convolution.norm.running_mean.normal_()
        block.convolution.norm.running_var.uniform_(0.5, 2.0)
    return block


def parakeet_with_the_weights_of(block: ConformerBlock) -> ParakeetEncoderBlock:
    """Return the Parakeet block of transformers with the weights of `block`.

    The 1x1 convolutions of Parakeet are linear layers in asr.
    """
    config = ParakeetEncoderConfig(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        intermediate_size=FEED_FORWARD_DIM,
        conv_kernel_size=KERNEL_SIZE,
        attn_implementation="sdpa",  # the eager attention of transformers computes the softmax in float32
        dropout=0.0,
        activation_dropout=0.0,
        attention_dropout=0.0,
    )
    ours = block.state_dict()
    weights = {}
    for their_name, our_name in NAMES.items():
        prefix = f"{our_name}."
        weights |= {f"{their_name}.{key[len(prefix) :]}": ours[key] for key in ours if key.startswith(prefix)}
    for number, letter in enumerate("qkv"):
        for kind in ("weight", "bias"):
            weights[f"self_attn.{letter}_proj.{kind}"] = ours[f"attention.qkv.{kind}"].chunk(3)[number]
    weights["self_attn.bias_u"] = ours["attention.u"][:, 0]
    weights["self_attn.bias_v"] = ours["attention.v"][:, 0]
    weights["conv.norm.num_batches_tracked"] = torch.tensor(0)
    for name in ("conv.pointwise_conv1.weight", "conv.pointwise_conv2.weight"):
        weights[name] = weights[name][:, :, None]
    theirs = ParakeetEncoderBlock(config, layer_idx=0).double()
    theirs.load_state_dict(weights)
    return theirs


@torch.no_grad()
def test_a_block_equals_the_parakeet_block_of_transformers() -> None:
    ours = random_block().eval()
    theirs = parakeet_with_the_weights_of(ours).eval()
    lengths = [13, 7, 1]
    x = torch.randn(3, 13, DIM, dtype=torch.float64)
    positions = relative_positions(13, DIM, x.device).double()
    padding = padding_mask(torch.tensor(lengths), 13)
    attend = ~padding[:, None, None, :].expand(-1, 1, 13, -1)  # the mask of transformers is True for visible frames
    out = ours(x, positions, padding)
    expected = theirs(x, attention_mask=attend, position_embeddings=positions.expand(3, -1, -1))
    for b, length in enumerate(lengths):
        torch.testing.assert_close(out[b, :length], expected[b, :length], rtol=0, atol=1e-9)


def test_in_training_a_block_equals_the_parakeet_block_if_there_is_no_padding() -> None:
    # Parakeet's batch normalisation includes padded frames, so this test has no padding.
    ours = random_block().train()
    theirs = parakeet_with_the_weights_of(ours).train()
    x = torch.randn(3, 13, DIM, dtype=torch.float64)
    positions = relative_positions(13, DIM, x.device).double()
    out = ours(x, positions, torch.zeros(3, 13, dtype=torch.bool))
    expected = theirs(x, position_embeddings=positions.expand(3, -1, -1))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-9)

    weights = torch.randn_like(out)  # a sum with equal weights has no gradient after a LayerNorm
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    for their_name, our_name in NAMES.items():
        actual, reference = ours.get_submodule(our_name).weight.grad, theirs.get_submodule(their_name).weight.grad
        torch.testing.assert_close(actual, reference.view_as(actual), rtol=0, atol=1e-9)
    torch.testing.assert_close(ours.convolution.norm.running_mean, theirs.conv.norm.running_mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(ours.convolution.norm.running_var, theirs.conv.norm.running_var, rtol=0, atol=1e-9)


def test_each_layer_has_its_own_u_and_v() -> None:
    encoder = small_conformer(num_layers=2)
    out = encoder(torch.randn(1, 40, 80), torch.tensor([40])).out
    (out * torch.randn_like(out)).sum().backward()
    gradients = [getattr(block.attention, name).grad for block in encoder.blocks for name in ("u", "v")]
    for number, gradient in enumerate(gradients):
        assert gradient.abs().max() > 0
        assert not any(torch.equal(gradient, other) for other in gradients[:number])


@pytest.mark.parametrize(
    ("name", "decoder_dim", "paper"),
    [("conformer_s", 320, 10.3), ("conformer_m", 640, 30.7), ("conformer_l", 640, 118.8)],
)
def test_sizes_equal_those_in_table_1_of_the_paper(name: str, decoder_dim: int, paper: float) -> None:
    """The paper also counts a transducer's decoder: one LSTM layer of `decoder_dim`, an embedding and a joint network.

    The sizes of the embedding and the joint network are unknown, so up to a million parameters may be missing.
    """
    with torch.device("meta"):  # shapes without memory
        encoder = component("encoder", resolved(f"encoder={name}")["encoder"])(80)
        decoder = torch.nn.LSTM(decoder_dim, decoder_dim)
    millions = sum(parameter.numel() for part in (encoder, decoder) for parameter in part.parameters()) / 1e6
    assert paper - 1.0 < millions < paper


@pytest.mark.parametrize("change", [{"dim": 18, "num_heads": 4}, {"dim": 9, "num_heads": 3}])
def test_the_error_for_a_dim_that_is_not_a_multiple_of_num_heads_names_both(change: dict[str, int]) -> None:
    given = f"dim={change['dim']}, num_heads={change['num_heads']}"
    with refused(InputError, f"encoder.dim; got {given}"):
        small_conformer(dim=change["dim"], block={"num_heads": change["num_heads"]})


def test_the_error_for_an_even_kernel_gives_the_reason() -> None:
    with refused(InputError, "encoder.block.convolution.kernel_size", got=32):
        small_conformer(block={"convolution": {"kernel_size": 32}})


def small_conformer(**changes: Any) -> Conformer:
    """Make the encoder conformer_xs with `changes` to its config."""
    return component("encoder", overridden(resolved("encoder=conformer_xs")["encoder"], changes))(80)


@pytest.mark.parametrize(
    ("encoder", "block"), [("conformer_xs", "streaming_block"), ("conformer_streaming_xs", "conformer_block")]
)
def test_a_block_of_another_kind_of_encoder_is_refused(encoder: str, block: str) -> None:
    config = resolved(f"encoder={encoder}", f"encoder/block={block}")["encoder"]
    with refused(InputError, "encoder.block ... streaming", cure="encoder/block=streaming_block"):
        component("encoder", config)(80)


@torch.no_grad()
def test_a_last_norm_normalises_the_output_and_no_tapped_block() -> None:
    torch.manual_seed(0)
    with_norm, without = (small_conformer(dim=16, last_norm=last_norm).eval() for last_norm in (True, False))
    with_norm.norm_output.weight.fill_(2.0)
    missing, unexpected = without.load_state_dict(with_norm.state_dict(), strict=False)
    assert (missing, unexpected) == ([], ["norm_output.weight", "norm_output.bias"])
    features, lengths, taps = torch.randn(2, 90, 80), torch.tensor([90, 50]), {4: lambda x, padding_mask: x}
    normed, plain = with_norm(features, lengths, taps), without(features, lengths, taps)
    expected = 2.0 * torch.nn.functional.layer_norm(plain.out, (16,))
    torch.testing.assert_close(normed.out, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(normed.blocks[4].out, plain.blocks[4].out, rtol=0, atol=0)
