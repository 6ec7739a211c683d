"""Every encoder becomes a program for any number of utterances and frames, which gives the same numbers."""

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from asr.build import build_features, component
from tests.conftest import CONF, resolved

SMALL = [  # how big a layer is makes no other program
    *("encoder.num_layers=2", "encoder.dim=32", "encoder.num_heads=2", "encoder.feed_forward_factor=2"),
    "encoder.subsampling.num_channels=8",
]


def encoders() -> list[str]:
    """The files of conf/encoder that make a program of their own, and not one that another size makes, too."""
    names = [path.stem for path in sorted((CONF / "encoder").glob("*.yaml"))]
    return sorted({str(resolved(f"encoder={name}", *SMALL)["encoder"]): name for name in names}.values())


# With the attention and the norm of each file, though not in each size: what is exported is a layer after another.
ENCODERS = [
    *([f"encoder={name}"] for name in encoders()),
    *([f"encoder/attention={path.stem}"] for path in sorted((CONF / "encoder" / "attention").glob("*.yaml"))),
    *([f"encoder/norm={path.stem}"] for path in sorted((CONF / "encoder" / "norm").glob("*.yaml"))),
]
SHAPES = [(1, 100), (3, 777), (5, 1501)]


def batch(number: int, frames: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(frames)
    lengths = torch.randint(frames // 2, frames + 1, (number,), generator=generator)
    lengths[0] = frames
    return torch.randn(number, frames, 80, generator=generator), lengths


@pytest.mark.parametrize("overrides", ENCODERS, ids=str)
@torch.no_grad()
def test_the_exported_program_runs_at_other_shapes_with_the_same_numbers(overrides: list[str]) -> None:
    config = resolved(*overrides, *SMALL)
    encoder: nn.Module = component("encoder", config["encoder"])(build_features(config).dim).eval()
    utterances, frames = Dim.DYNAMIC, Dim.DYNAMIC
    program = export(encoder, batch(2, 333), dynamic_shapes=({0: utterances, 1: frames}, {0: utterances})).module()
    for shape in SHAPES:
        features, lengths = batch(*shape)
        (out, out_lengths, _), (expected, expected_lengths, _) = program(features, lengths), encoder(features, lengths)
        assert torch.equal(out_lengths, expected_lengths)
        for number, length in enumerate(out_lengths.tolist()):
            torch.testing.assert_close(out[number, :length], expected[number, :length], rtol=0, atol=1e-5)
