"""The Zipformer has the outputs of icefall's own network with the same weights, for one utterance at a time."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.core.build import component
from tests.conftest import overridden, resolved
from tests.icefall import Modules, encoded, encoder_of, icefall, needs_icefall, randomize

pytestmark = [pytest.mark.slow, needs_icefall]

NUM_MEL_BINS = 80
FRAMES = (9, 10, 20, 21, 22, 23, 24, 25, 37, 100, 333, 999, 2000)
DIFFERENT_STACKS = {"dims": [16, 24, 32, 20], "layers": [1, 2, 1, 1], "strides": [2, 1, 8, 3], "heads": [4, 4, 8, 4]}
DIFFERENT_STACKS |= {"feed_forward_dims": [32, 40, 48, 32], "kernel_sizes": [31, 7, 3, 15]}
CASES = {f"zipformer_{size}": {} for size in ("xs", "s", "m", "l")} | {"zipformer_xs, other stacks": DIFFERENT_STACKS}
NAMES = (  # patterns of icefall's names, and ours
    (r"^encoder_embed\.conv\.0\.", "subsampling.conv1."),
    (r"^encoder_embed\.conv\.4\.", "subsampling.conv2."),
    (r"^encoder_embed\.conv\.7\.", "subsampling.conv3."),
    (r"^encoder_embed\.convnext\.(depthwise|pointwise)_conv", r"subsampling.layer.\1"),
    (r"^encoder_embed\.out\.", "subsampling.linear."),
    (r"^encoder_embed\.out_norm\.", "subsampling.norm."),
    (r"^encoder\.downsample_output\.bias", "pooling.weight"),
    (r"^encoder\.encoders\.(\d+)\.downsample\.bias", r"stacks.\1.pooling.weight"),
    (r"^encoder\.encoders\.(\d+)\.out_combiner\.bypass_scale", r"stacks.\1.bypass.share"),
    (r"^encoder\.encoders\.(\d+)\.(encoder\.)?layers\.(\d+)\.", r"stacks.\1.blocks.\3."),
    (r"self_attn_weights\.in_proj", "weights.projection"),
    (r"self_attn_weights\.linear_pos", "weights.position"),
    (r"self_attn(\d)\.in_proj", r"attention\1.value"),
    (r"self_attn(\d)\.out_proj", r"attention\1.output"),
    (r"(feed_forward\d)\.in_proj", r"\1.linear1"),
    (r"(feed_forward\d)\.out_proj", r"\1.linear2"),
    (r"nonlin_attention\.in_proj", "nonlinear_attention.projection"),
    (r"nonlin_attention\.out_proj", "nonlinear_attention.output"),
    (r"conv_module(\d)\.in_proj", r"convolution\1.pointwise1"),
    (r"conv_module(\d)\.out_proj", r"convolution\1.pointwise2"),
    (r"conv_module(\d)\.depthwise_conv", r"convolution\1.depthwise"),
    (r"\.bypass_mid\.bypass_scale", ".bypass_middle.share"),
    (r"\.bypass\.bypass_scale", ".bypass.share"),
)


def ours(name: str) -> str:
    for theirs, replacement in NAMES:
        name = re.sub(theirs, replacement, name)
    return name


@pytest.fixture(scope="module")
def modules() -> Iterator[Modules]:
    with icefall() as made:
        yield made


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_an_utterance_has_icefalls_output(case: str, modules: Modules) -> None:
    config = resolved(f"encoder={case.partition(',')[0]}", "head=ctc")["encoder"]
    settings = overridden(config, CASES[case])
    encoder: Any = component("encoder", settings)(NUM_MEL_BINS).double().eval()
    theirs = encoder_of(modules, settings, NUM_MEL_BINS).double().eval()
    randomize(theirs)
    shapes = encoder.state_dict()
    weights = {ours(name): weight for name, weight in theirs.named_parameters()}
    unused = weights.keys() - shapes.keys()
    assert unused == {name for name in weights if name.endswith("bypass_scale")}, "icefall says so of these"
    copied: dict[str, Tensor] = {name: weights[name].reshape(shape.shape) for name, shape in shapes.items()}
    encoder.load_state_dict(copied)
    generator = torch.Generator().manual_seed(1)
    for frames in FRAMES:
        features = 3 * torch.randn(frames, NUM_MEL_BINS, generator=generator, dtype=torch.float64)
        actual = encoder(features[None], torch.tensor([frames]))
        expected = encoded(theirs, features)
        assert int(actual.lengths[0]) == encoder.output_lengths(frames) == len(expected)
        torch.testing.assert_close(actual.out[0], expected, rtol=0, atol=1e-6)
