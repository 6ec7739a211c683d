"""The Transformer, compared with torch's own, once with LayerNorm before the sub-layers and once with it after them."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asr.base.kernels.positions import sinusoids
from asr.components.encoder.block.activation.gelu import GELU
from asr.components.encoder.block.activation.relu import ReLU
from asr.components.encoder.block.residual.post_norm import PostNorm
from asr.components.encoder.block.residual.pre_norm import PreNorm
from asr.components.encoder.block.transformer_block import TransformerBlock
from asr.components.encoder.transformer import Transformer
from asr.core.build import component
from asr.errors import InputError
from asr.lengths import padding_mask
from tests.conftest import resolved
from tests.refusals import refused

DIM, HEADS, FEED_FORWARD_DIM = 12, 3, 20


class NoSubsampling(nn.Module):
    """A layer that returns its input, so that a test sees only the stack."""

    stride = 1

    def __init__(self, input_dim: int, output_dim: int) -> None:
        super().__init__()
        assert input_dim == output_dim

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        return features, feature_lengths

    @staticmethod
    def output_lengths(feature_lengths: Tensor) -> Tensor:
        return feature_lengths


def random_transformer(num_layers: int, residual: Any = PreNorm, activation: Any = ReLU) -> Transformer:
    """Make a Transformer in float64; no parameter has its initial value."""
    encoder = Transformer(
        DIM,
        dim=DIM,
        num_layers=num_layers,
        subsampling=NoSubsampling,
        block=partial(
            TransformerBlock,
            num_heads=HEADS,
            feed_forward_factor=FEED_FORWARD_DIM / DIM,
            dropout=0.0,
            activation=activation,
            residual=residual,
        ),
    ).double()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return encoder.eval()


def torch_stack_with_the_weights_of(
    encoder: Transformer, *, norm_first: bool, activation: str
) -> nn.TransformerEncoder:
    """Make a torch.nn.TransformerEncoder; with pre-norm it ends with a LayerNorm."""
    layer = nn.TransformerEncoderLayer(
        DIM, HEADS, FEED_FORWARD_DIM, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
    )
    norm = nn.LayerNorm(DIM) if norm_first else None
    stack = nn.TransformerEncoder(layer, len(encoder.blocks), norm=norm, enable_nested_tensor=False)
    names = {
        "self_attn.in_proj_": "qkv.",
        "self_attn.out_proj.": "output.",
        "linear1.": "linear1.",
        "linear2.": "linear2.",
        "norm1.": "norm_attention.",
        "norm2.": "norm_feed_forward.",
    }
    ours = encoder.state_dict()
    weights = {name.replace("norm_output", "norm"): ours[name] for name in ours if name.startswith("norm_output")}
    for number in range(len(encoder.blocks)):
        for their_name, our_name in names.items():
            for kind in ("weight", "bias"):
                weights[f"layers.{number}.{their_name}{kind}"] = ours[f"blocks.{number}.{our_name}{kind}"]
    stack = stack.double()
    stack.load_state_dict(weights)
    return stack.train()  # dropout is 0, so this equals eval mode, whose fast path is another implementation


@pytest.mark.parametrize(("activation", "name"), [(ReLU, "relu"), (GELU, "gelu")])
@pytest.mark.parametrize("residual", [PreNorm, PostNorm])
@torch.no_grad()
def test_the_stack_of_blocks_equals_torchs_transformer_encoder(residual: Any, activation: Any, name: str) -> None:
    encoder = random_transformer(3, residual, activation)
    stack = torch_stack_with_the_weights_of(encoder, norm_first=residual is PreNorm, activation=name)
    lengths = torch.tensor([9, 4, 1])
    features = torch.randn(3, 9, DIM, dtype=torch.float64)
    padding = padding_mask(lengths, 9)
    out, out_lengths, *_ = encoder(features, lengths)
    expected = stack(features + sinusoids(torch.arange(9), DIM), src_key_padding_mask=padding)
    torch.testing.assert_close(out[~padding], expected[~padding], rtol=0, atol=1e-9)
    assert torch.equal(out_lengths, lengths)


@torch.no_grad()
def test_sinusoidal_positions_are_added_to_the_input() -> None:
    encoder = random_transformer(num_layers=1)
    encoder.blocks = torch.nn.ModuleList()  # only the sum and the last LayerNorm are left
    features = torch.randn(1, 6, DIM, dtype=torch.float64)
    out = encoder(features, torch.tensor([6])).out
    summed = features.clone()
    for position in range(6):
        for channel in range(DIM):
            angle = position / 10000 ** (2 * (channel // 2) / DIM)
            summed[0, position, channel] += math.cos(angle) if channel % 2 else math.sin(angle)
    # The encoder computes its positions in float32.
    torch.testing.assert_close(out, encoder.norm_output(summed), rtol=0, atol=1e-5)


def test_a_dim_that_is_not_a_multiple_of_num_heads_is_an_error_that_names_both() -> None:
    config = {**resolved("encoder=transformer")["encoder"], "dim": 18}
    must = "encoder.dim ... dim=18 ... num_heads=4"
    with refused(InputError, must):
        component("encoder", config)(80)
