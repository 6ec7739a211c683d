"""The Fast Conformer equals the Parakeet encoder of transformers, and its sizes equal those in NeMo's table."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.models.parakeet.configuration_parakeet import ParakeetEncoderConfig
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoder

from asr.apps.convert.account import Counterparts, take
from asr.apps.convert.huggingface.config import encoder_config, scale
from asr.apps.convert.huggingface.parakeet import names
from asr.base.kernels.positions import relative_positions
from asr.components.encoder.conformer import Conformer
from asr.components.encoder.subsampling.causal_conv import CausalConv
from asr.components.encoder.subsampling.depthwise_conv import DepthwiseConv
from asr.core.build import component
from tests import parakeet
from tests.conftest import resolved

LENGTHS = [75, 64, 9, 1]  # frames
OPTIONS = ("attention_bias", "convolution_bias", "scale_input")
CHOICES = [dict(zip(OPTIONS, values, strict=True)) for values in itertools.product([True, False], repeat=3)]


class Positions(nn.Module):
    """asr's positional encodings, to replace those of transformers, which are rounded to float32 even in float64."""

    def forward(self, x: Tensor) -> Tensor:
        return relative_positions(x.shape[1], x.shape[2], x.device).to(x.dtype).expand(len(x), -1, -1)


def with_the_weights_of(theirs: ParakeetEncoder) -> Conformer:
    """Return an encoder of asr with the config and weights of an encoder of transformers."""
    config = {"model_type": "parakeet_ctc", "encoder_config": theirs.config.to_diff_dict()}
    ours = component("encoder", encoder_config(config))(parakeet.MELS)
    shapes = {f"encoder.{name}": tensor.shape for name, tensor in ours.state_dict().items()}
    tensors = {f"encoder.{name}": tensor for name, tensor in theirs.state_dict().items()}
    weights, _ = take(tensors, shapes, Counterparts(names(0)._replace(scale=scale(config)).row))
    ours.load_state_dict({name.removeprefix("encoder."): weight for name, weight in weights.items()})
    return ours.eval()


@pytest.mark.parametrize("options", CHOICES, ids=lambda options: "".join("+-"[not on] for on in options.values()))
@torch.no_grad()
def test_the_encoder_equals_parakeets_in_transformers(options: dict[str, bool]) -> None:
    theirs = parakeet.encoder(**options)
    ours = with_the_weights_of(theirs).double()
    theirs.double().encode_positions = Positions()
    features = torch.randn(len(LENGTHS), max(LENGTHS), parakeet.MELS, dtype=torch.float64)
    valid = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    expected = theirs(features * valid[:, :, None], attention_mask=valid)
    out, lengths, *_ = ours(features, torch.tensor(LENGTHS))
    assert lengths.tolist() == expected.attention_mask.sum(1).tolist() == [10, 8, 2, 1]
    for number, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(out[number, :length], expected.last_hidden_state[number, :length], rtol=0, atol=1e-9)


def test_positions_equal_those_of_transformers_within_float32_rounding() -> None:
    x = torch.zeros(1, 200, parakeet.ENCODER["hidden_size"])
    # Angles reach 200 rad, so the rounding error of float32 is large.
    torch.testing.assert_close(Positions()(x), parakeet.encoder().encode_positions(x), rtol=0, atol=1e-4)


@pytest.mark.parametrize("options", [{}, dict.fromkeys(OPTIONS, False)], ids=["with biases", "without"])
def test_the_number_of_parameters_equals_that_of_transformers(options: dict[str, bool]) -> None:
    theirs = parakeet.encoder(**options)
    ours = with_the_weights_of(theirs)
    assert sum(map(torch.numel, ours.parameters())) == sum(map(torch.numel, theirs.parameters()))


@pytest.mark.parametrize(("name", "dim", "heads", "layers"), [("s", 176, 4, 16), ("m", 256, 4, 16), ("l", 512, 8, 17)])
def test_the_sizes_equal_those_in_nemos_table(name: str, dim: int, heads: int, layers: int) -> None:
    """The number of parameters equals that of the encoder in transformers with default channels and kernels."""
    sizes = {
        "hidden_size": dim,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "intermediate_size": 4 * dim,
    }
    with torch.device("meta"):  # shapes without memory
        ours = component("encoder", resolved(f"encoder=fast_conformer_{name}")["encoder"])(80)
        theirs = ParakeetEncoder(ParakeetEncoderConfig(**sizes))
    assert ours.stride == theirs.config.subsampling_factor == 8
    assert sum(map(torch.numel, ours.parameters())) == sum(map(torch.numel, theirs.parameters()))


def plainly(front_end: DepthwiseConv, features: Tensor, length: int) -> Tensor:
    """Pad one utterance (T, F) with zeros, and subsample it to (T', D) by sums over windows, channel by channel."""
    x = features[None, :length]  # (channels, T, F)
    for number, stage in enumerate(front_end.stages):
        conv, pointwise = (stage, None) if number == 0 else stage
        frames, bins = (x.shape[1] + 1) // 2, (x.shape[2] + 1) // 2
        around = nn.functional.pad(x, (1, 1, 1, 1))
        out = torch.empty(conv.out_channels, frames, bins, dtype=x.dtype)
        for channel, frame, place in itertools.product(range(conv.out_channels), range(frames), range(bins)):
            window = around[0 if number == 0 else channel, 2 * frame : 2 * frame + 3, 2 * place : 2 * place + 3]
            out[channel, frame, place] = (window * conv.weight[channel, 0]).sum() + conv.bias[channel]
        if pointwise is not None:
            mixed = torch.einsum("oi,itf->otf", pointwise.weight[:, :, 0, 0], out)
            out = mixed + pointwise.bias[:, None, None]
        x = out.clamp(min=0)
    return front_end.linear(x.transpose(0, 1).flatten(1))


@settings(deadline=None, max_examples=15)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=3), more=st.integers(0, 5), dim=st.integers(1, 12))
@torch.no_grad()
def test_the_front_end_equals_sums_over_windows(lengths: list[int], more: int, dim: int) -> None:
    torch.manual_seed(0)
    front_end = DepthwiseConv(dim, 4, num_channels=3, dropout=0.0).double()
    features = torch.randn(len(lengths), max(lengths) + more, dim, dtype=torch.float64)
    out, out_lengths = front_end(features, torch.tensor(lengths))
    assert out_lengths.tolist() == [front_end.output_lengths(length) for length in lengths]
    assert out_lengths.tolist() == [(length + 7) // 8 for length in lengths]
    for number, length in enumerate(lengths):
        expected = plainly(front_end, features[number], length)
        assert len(expected) == out_lengths[number]
        torch.testing.assert_close(out[number, : len(expected)], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cls", [DepthwiseConv, CausalConv])
def test_a_long_recording_subsampled_in_blocks_gives_the_same_frames(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{cls.__module__}.BLOCK_FRAMES", 5)
    subsampling = cls(20, 16, num_channels=6, dropout=0.0).double()
    for num_frames in (39, 40, 41, 48, 49, 203):
        features = torch.randn(3, num_frames, 20, dtype=torch.float64)
        lengths = torch.tensor([num_frames, num_frames // 2, num_frames - 3])
        features[1, num_frames // 2 :] = float("nan")
        whole, expected = subsampling(features, lengths)
        with torch.no_grad():
            in_blocks, actual = subsampling(features, lengths)
        assert torch.equal(actual, expected)
        assert in_blocks.isfinite().all()
        for row, length in enumerate(expected.tolist()):
            torch.testing.assert_close(in_blocks[row, :length], whole[row, :length], rtol=0, atol=1e-10)
