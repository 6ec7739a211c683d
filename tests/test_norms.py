"""Each norm of conf/encoder/block/norm except masked_batch_norm equals its equation in plain loops over utterances."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asr.base.settings.conf import names
from asr.components.encoder.block.norm.switchable_norm import SwitchableNorm
from asr.core.build import component
from asr.errors import InputError
from asr.lengths import padding_mask
from tests.conftest import resolved
from tests.refusals import refused

DIM, FRAMES, EPS = 6, 9, 1e-5
LENGTHS = [9, 4, 1, 0, 6]
GROUPS = 3


def plain_layer_norm(norm: Any, utterances: list[Tensor]) -> list[Tensor]:
    """Normalise each frame over its channels."""
    return [F.layer_norm(x, (DIM,), norm.norm.weight, norm.norm.bias, EPS) for x in utterances]


def plain_group_norm(norm: Any, utterances: list[Tensor]) -> list[Tensor]:
    """Apply torch's GroupNorm to one utterance at a time."""
    return [F.group_norm(x.T[None], GROUPS, norm.weight, norm.bias, EPS)[0].T for x in utterances]


def plain_instance_norm(norm: Any, utterances: list[Tensor]) -> list[Tensor]:
    """Normalise each channel of an utterance: arXiv:1607.08022, equation 4."""
    return [
        (x - x.mean(dim=0)) / (x.var(dim=0, correction=0) + EPS).sqrt() * norm.weight + norm.bias for x in utterances
    ]


def plain_switchable_norm(norm: SwitchableNorm, utterances: list[Tensor]) -> list[Tensor]:
    """Compute switchable normalisation: arXiv:1806.10779, equations 3 to 5."""
    frames = torch.cat(utterances)
    batch = (frames.mean(dim=0), frames.var(dim=0, correction=0))
    if not norm.training:
        batch = (norm.running_mean, norm.running_var)
    shares = [weight.exp() / weight.exp().sum() for weight in (norm.mean_weight, norm.var_weight)]
    normalized = []
    for x in utterances:
        instance = (x.mean(dim=0), x.var(dim=0, correction=0))
        layer = (x.mean(), x.var(correction=0))
        mean, var = (
            share[0] * instance[k] + share[1] * layer[k] + share[2] * batch[k] for k, share in enumerate(shares)
        )
        normalized.append((x - mean) / (var + EPS).sqrt() * norm.weight + norm.bias)
    return normalized


PLAIN: dict[str, Callable[[Any, list[Tensor]], list[Tensor]]] = {
    "layer_norm": plain_layer_norm,
    "group_norm": plain_group_norm,
    "instance_norm": plain_instance_norm,
    "switchable_norm": plain_switchable_norm,
}


def random_norm(name: str) -> Any:
    """Make a norm in float64, with random parameters and running statistics."""
    config = resolved(f"encoder/block/norm={name}")["encoder"]["block"]["norm"]
    norm = component("encoder/block/norm", config | ({"num_groups": GROUPS} if name == "group_norm" else {}))(
        DIM
    ).double()
    with torch.no_grad():
        for tensor in norm.state_dict().values():
            tensor.uniform_(0.3, 2.0)
    return norm


def random_batch() -> tuple[Tensor, Tensor]:
    """Return frames with a mean of 3, with junk after the end of each utterance, and the padding mask."""
    padding = padding_mask(torch.tensor(LENGTHS), FRAMES)
    x = 3.0 + 2.0 * torch.randn(len(LENGTHS), FRAMES, DIM, dtype=torch.float64)
    return x, padding


def test_every_norm_has_a_reference_implementation_in_this_file() -> None:
    named = {*names("encoder/block/norm")}
    assert named == PLAIN.keys() | {"masked_batch_norm"}  # masked_batch_norm is in test_batch_norm.py


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", PLAIN)
def test_outputs_and_gradients_of_a_norm_equal_those_of_its_equation_on_valid_frames(name: str, training: bool) -> None:
    norm = random_norm(name).train(training)
    x, padding = random_batch()
    x.requires_grad_()
    # layer_norm normalises each frame separately, so NaN in padded frames would remain there and fail the next check.
    junk = x if name == "layer_norm" else x.masked_fill(padding[:, :, None], float("nan"))
    out = norm(junk, padding)
    assert out.isfinite().all()
    plain = torch.cat(PLAIN[name](norm, [row[:length] for row, length in zip(x, LENGTHS, strict=True) if length]))
    weights = torch.randn_like(plain)
    wanted = [x, *norm.parameters()]
    results = [
        [frames, *torch.autograd.grad((frames * weights).sum(), wanted, allow_unused=True)]
        for frames in (out[~padding], plain)
    ]
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-11)  # float64 rounding


@torch.no_grad()
@pytest.mark.parametrize("name", ["group_norm", "instance_norm", "switchable_norm"])
def test_statistics_are_computed_in_float32_for_bfloat16_frames(name: str) -> None:
    norm = random_norm(name).float()
    x, padding = (part.bfloat16() if part.is_floating_point() else part for part in random_batch())
    assert torch.equal(norm(x, padding), norm(x.float(), padding).bfloat16())


@torch.no_grad()
def test_the_running_statistics_of_switchable_norm_equal_those_of_batch_norm() -> None:
    switchable, batch = random_norm("switchable_norm"), random_norm("masked_batch_norm")
    batch.load_state_dict({name: switchable.state_dict()[name] for name in batch.state_dict()})
    x, padding = random_batch()
    for norm in (switchable, batch):
        norm.train()(x, padding)
    torch.testing.assert_close(switchable.running_mean, batch.running_mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(switchable.running_var, batch.running_var, rtol=0, atol=1e-12)


def test_groups_that_do_not_divide_the_channels_are_refused_in_one_line() -> None:
    must = "encoder.block.norm.num_groups; got num_groups=5 and 6 channels"
    with refused(InputError, must):
        component("encoder/block/norm", {"name": "group_norm", "num_groups": 5, "eps": EPS})(DIM)
