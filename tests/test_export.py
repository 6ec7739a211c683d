"""Every exported encoder accepts any number of utterances and frames, and its outputs equal those of torch."""

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from asr.core.build import component
from tests.conftest import OTHER_PARTS, SMALLEST_ENCODERS, STACKS, overridden, resolved

# One encoder of each class, and one with each part. Other sizes are not tested, because they give similar programs.
PARTS = {(part.group, part.name): part for part in reversed(OTHER_PARTS)}
CASES = [
    *(
        pytest.param([f"encoder={name}"], marks=[pytest.mark.slow] * ("streaming" in name or name == "lstm"))
        for name in SMALLEST_ENCODERS
    ),
    *(pytest.param(part.overrides, marks=pytest.mark.slow) for part in PARTS.values()),
]
SMALL = {  # the size of a layer does not change the program
    **STACKS,
    "num_layers": 2,
    "dim": 32,
    "block": {"num_heads": 2, "feed_forward_factor": 2},
    "segment": 32,
    "subsampling": {"num_channels": 8, "channels": [4, 4, 8]},
}
NUM_MEL_BINS = 80
SHAPES = [(1, 100), (3, 777), (5, 1501)]


def batch(number: int, frames: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(frames)
    lengths = torch.randint(frames // 2, frames + 1, (number,), generator=generator)
    lengths[0] = frames
    return torch.randn(number, frames, NUM_MEL_BINS, generator=generator), lengths


@pytest.mark.parametrize("overrides", CASES, ids=str)
@torch.no_grad()
def test_an_exported_encoder_has_the_same_outputs_as_torch_for_other_shapes(overrides: list[str]) -> None:
    config = resolved(*overrides)
    encoder: nn.Module = component("encoder", overridden(config["encoder"], SMALL))(NUM_MEL_BINS).eval()
    utterances, frames = Dim.DYNAMIC, Dim.DYNAMIC
    program = export(encoder, batch(2, 333), dynamic_shapes=({0: utterances, 1: frames}, {0: utterances})).module()
    for shape in SHAPES:
        features, lengths = batch(*shape)
        (out, out_lengths, *_), (expected, expected_lengths, *_) = (
            program(features, lengths),
            encoder(features, lengths),
        )
        assert torch.equal(out_lengths, expected_lengths)
        for number, length in enumerate(out_lengths.tolist()):
            torch.testing.assert_close(out[number, :length], expected[number, :length], rtol=0, atol=1e-5)
