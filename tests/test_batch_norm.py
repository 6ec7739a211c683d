"""Masked batch normalisation equals torch's on the gathered valid frames, on one rank and on several.

This includes the batch statistics of switchable normalisation.
"""

from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from asr.components.encoder.block.norm import moments
from asr.components.encoder.block.norm.masked_batch_norm import MaskedBatchNorm
from asr.components.encoder.block.norm.switchable_norm import SwitchableNorm
from asr.lengths import padding_mask

DIM, FRAMES = 5, 9
LENGTHS = torch.tensor([9, 4, 1, 6])


Norm = TypeVar("Norm", MaskedBatchNorm, SwitchableNorm)


def random_norm(momentum: float = 0.1) -> MaskedBatchNorm:
    return drawn(MaskedBatchNorm(DIM, momentum=momentum, eps=1e-5))


def drawn(norm: Norm) -> Norm:
    """Convert a norm to float64, with random parameters and running statistics."""
    norm = norm.double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    return norm


def torchs_norm_with_the_weights_of(norm: MaskedBatchNorm) -> nn.BatchNorm1d:
    theirs = nn.BatchNorm1d(DIM, eps=norm.eps, momentum=norm.momentum).double()
    theirs.load_state_dict({**norm.state_dict(), "num_batches_tracked": torch.tensor(0)})
    return theirs


def random_batch() -> tuple[Tensor, Tensor]:
    """Return frames with a mean of 3 and junk in the padding, and the padding mask."""
    padding = padding_mask(LENGTHS, FRAMES)
    x = 3.0 + 2.0 * torch.randn(len(LENGTHS), FRAMES, DIM, dtype=torch.float64)
    return x.masked_fill(padding[:, :, None], float("nan")), padding


@pytest.mark.parametrize("momentum", [0.1, 0.7])
def test_training_equals_torchs_batch_norm_on_valid_frames(momentum: float) -> None:
    ours = random_norm(momentum)
    theirs = torchs_norm_with_the_weights_of(ours)
    x, padding = random_batch()
    x.requires_grad_()
    frames = x.detach()[~padding].requires_grad_()  # (valid frames, D)
    weights = torch.randn_like(frames)

    out, expected = ours(x, padding), theirs(frames)
    assert out.isfinite().all()
    (out[~padding] * weights).sum().backward()
    (expected * weights).sum().backward()

    # float64 rounding
    torch.testing.assert_close(out[~padding], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(x.grad[~padding], frames.grad, rtol=0, atol=1e-12)
    assert not x.grad[padding].any()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=0, atol=1e-12)


@torch.no_grad()
def test_the_running_variance_is_unbiased() -> None:
    norm = MaskedBatchNorm(1, momentum=1.0, eps=1e-5)
    norm(torch.tensor([[[1.0], [2.0], [6.0], [float("inf")]]]), torch.tensor([[False, False, False, True]]))
    torch.testing.assert_close(norm.running_mean, torch.tensor([3.0]))
    torch.testing.assert_close(norm.running_var, torch.tensor([7.0]))  # (4 + 1 + 9) / (3 - 1)


@torch.no_grad()
def test_evaluation_equals_torchs_batch_norm_and_does_not_change_the_statistics() -> None:
    ours = random_norm().eval()
    theirs = torchs_norm_with_the_weights_of(ours).eval()
    before = ours.running_mean.clone(), ours.running_var.clone()
    x, padding = random_batch()
    torch.testing.assert_close(ours(x, padding)[~padding], theirs(x[~padding]), rtol=0, atol=1e-12)
    assert torch.equal(ours.running_mean, before[0])
    assert torch.equal(ours.running_var, before[1])


@torch.no_grad()
def test_a_large_mean_with_a_small_deviation_costs_no_accuracy() -> None:
    """A sum of squares would lose all digits: 1000^2 in float32 is accurate to 0.06, and the variance is 0.01."""
    norm = MaskedBatchNorm(DIM, momentum=1.0, eps=1e-5)
    padding = padding_mask(LENGTHS, FRAMES)
    x = 1000.0 + 0.1 * torch.randn(len(LENGTHS), FRAMES, DIM)
    valid = x[~padding].double()
    exact = (valid - valid.mean(dim=0)) / (valid.var(dim=0, correction=0) + 1e-5).sqrt()
    # A number near 1000 has a rounding error of 3e-5, and the error of the mean is a few times larger. Normalisation
    # divides both errors by the deviation of 0.1.
    tolerance = 5e-3
    torch.testing.assert_close(norm(x, padding)[~padding].double(), exact, rtol=0, atol=tolerance)
    torch.testing.assert_close(norm.running_var.double(), valid.var(dim=0), rtol=tolerance, atol=0)
    norm.eval()
    exact = (valid - norm.running_mean.double()) / (norm.running_var.double() + 1e-5).sqrt()
    torch.testing.assert_close(norm(x, padding)[~padding].double(), exact, rtol=0, atol=tolerance)


@torch.no_grad()
@pytest.mark.parametrize("training", [True, False])
def test_bfloat16_frames_are_normalised_in_float32_and_rounded_once(training: bool) -> None:
    norm = MaskedBatchNorm(DIM, momentum=0.1, eps=1e-5).train(training)
    norm.running_mean.fill_(3.0)
    norm.running_var.fill_(0.04)
    norm.weight.uniform_(0.5, 1.5)
    padding = padding_mask(LENGTHS, FRAMES)
    x = (3.0 + 0.2 * torch.randn(len(LENGTHS), FRAMES, DIM)).bfloat16()
    assert torch.equal(norm(x, padding), norm(x.float(), padding).bfloat16())


def test_a_batch_without_valid_frames_does_not_change_the_statistics() -> None:
    norm = random_norm()
    before = norm.running_mean.clone(), norm.running_var.clone()
    x = torch.full((2, FRAMES, DIM), float("nan"), dtype=torch.float64)
    padding = torch.ones(2, FRAMES, dtype=torch.bool)
    left = _forward_and_backward(norm, x, padding, torch.ones_like(x))
    assert torch.equal(left["running_mean"], before[0])
    assert torch.equal(left["running_var"], before[1])
    assert left["out"].isfinite().all()
    assert not any(left[name].any() for name in ("x.grad", "weight.grad", "bias.grad"))


@torch.no_grad()
def test_a_batch_of_one_valid_frame_updates_the_statistics() -> None:
    norm = MaskedBatchNorm(1, momentum=0.25, eps=1e-5)
    norm(torch.tensor([[[4.0], [float("nan")]]]), torch.tensor([[False, True]]))
    assert norm.running_mean == 1.0


def _forward_and_backward(norm: nn.Module, x: Tensor, padding: Tensor, weights: Tensor) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    out = norm(x, padding)
    (out * weights).masked_fill(padding[:, :, None], 0.0).sum().backward()
    gradients = {f"{name}.grad": parameter.grad for name, parameter in norm.named_parameters()}
    return {"out": out.detach(), "x.grad": x.grad, **gradients, **dict(norm.named_buffers())}


def _one_rank(rank: int, folder: Path, shares: list[slice]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=len(shares))
    given = torch.load(folder / "given.pt", weights_only=False)
    norm = given["class"](DIM, momentum=0.1, eps=1e-5).double()
    norm.load_state_dict(given["norm"])
    batch = (given[name][shares[rank]] for name in ("x", "padding", "weights"))
    with patch.object(moments.dist_nn, "all_reduce", wraps=moments.dist_nn.all_reduce) as collective:
        results = _forward_and_backward(norm, *batch)
    torch.save({**results, "collectives": torch.tensor(collective.call_count)}, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("make", [MaskedBatchNorm, pytest.param(SwitchableNorm, marks=pytest.mark.slow)])
def test_two_ranks_with_unequal_shares_give_the_results_of_one_process_with_the_whole_batch(
    make: Any, tmp_path: Path
) -> None:
    norm = drawn(make(DIM, momentum=0.1, eps=1e-5))
    x, padding = random_batch()
    weights = torch.randn_like(x)
    given = {"class": type(norm), "norm": norm.state_dict(), "x": x, "padding": padding, "weights": weights}
    torch.save(given, tmp_path / "given.pt")
    shares = [slice(0, 3), slice(3, 4)]  # 14 valid frames and 6
    mp.spawn(_one_rank, args=(tmp_path, shares), nprocs=2)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))

    assert int(first["collectives"]) == (2 if make is MaskedBatchNorm else 3)
    joint = _forward_and_backward(norm, x, padding, weights)
    # The tolerances allow for float64 rounding.
    for name in ("out", "x.grad"):
        torch.testing.assert_close(torch.cat([first[name], second[name]]), joint[name], rtol=0, atol=1e-12)
    # Gradients of a sum of losses add up over ranks.
    for name in [f"{name}.grad" for name, _ in norm.named_parameters()]:
        torch.testing.assert_close(first[name] + second[name], joint[name], rtol=0, atol=1e-12)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(first[name], joint[name], rtol=0, atol=1e-12)
        torch.testing.assert_close(second[name], joint[name], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_rank_with_padding_only_joins_the_reduction_and_changes_no_result(tmp_path: Path) -> None:
    """The second rank has the placeholder for a batch without readable utterances: one utterance of length 0."""
    norm = random_norm()
    x, padding = random_batch()
    x[3], padding[3] = float("nan"), True
    weights = torch.randn_like(x)
    given = {"class": type(norm), "norm": norm.state_dict(), "x": x, "padding": padding, "weights": weights}
    torch.save(given, tmp_path / "given.pt")
    shares = [slice(0, 3), slice(3, 4)]
    mp.spawn(_one_rank, args=(tmp_path, shares), nprocs=2)
    full, empty = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))

    alone = _forward_and_backward(norm, x[:3], padding[:3], weights[:3])
    for name in alone:  # equal within float64 rounding
        torch.testing.assert_close(full[name], alone[name], rtol=0, atol=1e-12)
    assert torch.equal(empty["running_mean"], full["running_mean"])
    assert torch.equal(empty["running_var"], full["running_var"])
    assert empty["out"].isfinite().all()
    assert not any(empty[name].any() for name in ("x.grad", "weight.grad", "bias.grad"))
