"""Recomputing activations saves memory in a training step, and does not change its results."""

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from asr.components.encoder.block.norm.masked_batch_norm import MaskedBatchNorm
from asr.core.build import component
from asr.core.training.gradient_checkpointing import recompute_blocks
from asr.errors import InputError
from asr.interfaces import Block
from tests.conftest import STACKS, overridden, resolved
from tests.listener import Ear
from tests.refusals import refused

NUM_MEL_BINS = 20
CASES = pytest.mark.parametrize(
    "overrides",
    [
        ("encoder=conformer_s", "encoder/block/norm=masked_batch_norm"),
        ("encoder=conformer_s", "encoder/block/norm=layer_norm"),
        ("encoder=transformer",),
        ("encoder=transformer_xl", "encoder.segment=5"),
        ("encoder=lstm",),
    ],
    ids=lambda overrides: "-".join(override.split("=")[1] for override in overrides),
)
SMALL = {
    "dim": 16,
    "num_layers": 3,
    "subsampling": {"num_channels": 4, "channels": [4, 4, 8]},
    **STACKS,
    "block": {"num_heads": 4, "feed_forward_factor": 2},
}
BATCH_NORM = ("encoder=conformer_s", "encoder/block/norm=masked_batch_norm")


def make_encoder(
    overrides: tuple[str, ...], *, recompute: bool, num_layers: int = 3, dtype: torch.dtype = torch.float64
) -> nn.Module:
    """Make an encoder with fixed weights and the default dropout, 0.1."""
    torch.manual_seed(0)
    config = overridden(resolved(*overrides)["encoder"], SMALL | {"num_layers": num_layers})
    encoder = component("encoder", config)(NUM_MEL_BINS).to(dtype)
    assert encoder.blocks[0].dropout.p == 0.1
    if recompute:
        recompute_blocks(encoder)
    return encoder


def batch(number: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    features = torch.randn(3, 50, NUM_MEL_BINS, generator=generator, dtype=torch.float64).to(dtype)
    return features, torch.tensor([50, 33, 7])


def loss_of(encoder: nn.Module, features: Tensor, lengths: Tensor) -> Tensor:
    encoded = encoder(features, lengths)
    return sum(((out[:length] - 0.5) ** 3).sum() for out, length in zip(encoded.out, encoded.lengths, strict=True))


def train(encoder: nn.Module, *, autocast: bool = False) -> dict[str, Tensor]:
    """Return all results of three batches: one alone, and two whose graphs exist at the same time."""
    dtype = next(encoder.parameters()).dtype
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        first = loss_of(encoder, *batch(0, dtype))
    first.backward()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        others = loss_of(encoder, *batch(1, dtype)) + loss_of(encoder, *batch(2, dtype))
    others.backward()
    gradients = {f"gradient of {name}": parameter.grad for name, parameter in encoder.named_parameters()}
    left = {"loss": first.detach(), "losses": others.detach(), "generator": torch.get_rng_state()}
    return left | gradients | dict(encoder.named_buffers())


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare bit for bit: on a CPU equal operations on equal numbers give equal bits."""
    assert actual.keys() == expected.keys()
    assert not [name for name, value in actual.items() if not torch.equal(value, expected[name])]


@CASES
def test_loss_gradients_and_buffers_equal_those_without_recomputation(overrides: tuple[str, ...]) -> None:
    expected = train(make_encoder(overrides, recompute=False))
    assert_equal(train(make_encoder(overrides, recompute=True)), expected)
    assert all(value.isfinite().all() for value in expected.values())
    assert any(value.any() for name, value in expected.items() if name.startswith("gradient of blocks"))


@CASES
def test_loss_gradients_and_buffers_are_also_equal_under_autocast(overrides: tuple[str, ...]) -> None:
    plain, recomputing = (
        make_encoder(overrides, recompute=recompute, dtype=torch.float32) for recompute in (False, True)
    )
    assert_equal(train(recomputing, autocast=True), train(plain, autocast=True))


def test_a_batch_is_counted_once_in_the_running_statistics() -> None:
    encoder = make_encoder(BATCH_NORM, recompute=True)
    loss = loss_of(encoder, *batch())
    after_forward = {name: buffer.clone() for name, buffer in encoder.named_buffers()}
    assert after_forward
    loss.backward()
    assert_equal(dict(encoder.named_buffers()), after_forward)


class RunningMean(nn.Module):
    """A block whose output depends on a buffer that it updates."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.detach().mean(), 0.5)
        return (self.weight * self.mean * x) ** 2


def test_the_recomputation_starts_with_the_same_buffers_as_the_forward_pass() -> None:
    gradients = []
    for recompute in (False, True):
        block = RunningMean()
        if recompute:
            recompute_blocks(SimpleNamespace(named_blocks=lambda block=block: [("0", Block(block, 1, 1))]))
        block(torch.tensor([1.0, 2.0])).sum().backward()
        gradients.append(block.weight.grad)
        assert block.mean == 0.75
    assert gradients[1] == gradients[0] != 0


def test_a_retained_graph_can_be_used_twice() -> None:
    encoder = make_encoder(BATCH_NORM, recompute=True)
    parameters = list(encoder.parameters())
    loss = loss_of(encoder, *batch())
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    assert all(map(torch.equal, torch.autograd.grad(loss, parameters), first))


@CASES
def test_far_fewer_activations_are_stored(overrides: tuple[str, ...]) -> None:
    sizes = []
    for recompute in (False, True):
        encoder = make_encoder(overrides, recompute=recompute, num_layers=6)
        weights = {parameter.untyped_storage().data_ptr() for parameter in encoder.parameters()}
        storages: dict[int, int] = {}  # tensors stored for the gradients, except weights: address to bytes
        alive = []

        def keep(tensor: Tensor, weights: Any = weights, storages: Any = storages, alive: Any = alive) -> Tensor:
            alive.append(tensor)  # keep a reference, so that the address is not reused
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            encoder(*batch())
        sizes.append(sum(storages.values()))
    # Each of the six blocks stores only its input; the front-end is not recomputed.
    assert sizes[1] < sizes[0] / 4, sizes


def test_nothing_is_recomputed_in_evaluation_or_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = make_encoder(BATCH_NORM, recompute=True)
    plain = make_encoder(BATCH_NORM, recompute=False)
    monkeypatch.setattr(
        "asr.core.training.gradient_checkpointing.checkpoint",
        lambda *_, **__: pytest.fail("the recomputation was set up"),
    )
    with torch.no_grad():
        encoder(*batch())
    encoder, plain = make_encoder(BATCH_NORM, recompute=True).eval(), plain.eval()
    assert torch.equal(encoder(*batch())[0], plain(*batch())[0])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda encoder: pickle.loads(pickle.dumps(encoder))])
def test_a_copy_of_an_encoder_uses_its_own_weights_and_still_recomputes(
    copied: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = make_encoder(BATCH_NORM, recompute=True)
    theirs = copied(encoder)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.fill_(float("nan"))
    calls = []
    monkeypatch.setattr(
        "asr.core.training.gradient_checkpointing.checkpoint",
        lambda *given, **how: calls.append(1) or checkpoint(*given, **how),
    )
    assert_equal(train(theirs), train(make_encoder(BATCH_NORM, recompute=False)))
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert len(calls) == 3 * len(theirs.blocks)  # for three batches


def test_names_in_the_state_dict_do_not_change() -> None:
    encoder = make_encoder(BATCH_NORM, recompute=True)
    plain = make_encoder(BATCH_NORM, recompute=False)
    assert list(encoder.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(encoder.state_dict())
    recompute_blocks(encoder)  # a second call changes nothing
    assert_equal(train(encoder), train(plain))


def test_an_encoder_that_is_not_a_stack_of_blocks_is_refused() -> None:
    with refused(InputError, "gradient_checkpointing ... no blocks"):
        recompute_blocks(Ear())


def _one_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for recompute in (False, True):
        encoder = make_encoder(BATCH_NORM, recompute=recompute)
        parallel = DistributedDataParallel(encoder)
        losses = []
        for number in range(2):
            torch.manual_seed(10 * number + rank)
            features, lengths = batch(10 * number + rank)
            loss = loss_of(parallel, features[rank:], lengths[rank:])  # rank 0 has three utterances, rank 1 two
            loss.backward()
            losses.append(loss.detach())
        gradients = {name: parameter.grad for name, parameter in encoder.named_parameters()}
        left = {"losses": torch.stack(losses)} | gradients | dict(encoder.named_buffers())
        torch.save(left, folder / f"rank{rank}-{recompute}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_recomputation_does_not_change_results_with_statistics_over_two_ranks(tmp_path: Path) -> None:
    assert any(isinstance(module, MaskedBatchNorm) for module in make_encoder(BATCH_NORM, recompute=True).modules())
    mp.spawn(_one_rank, args=(tmp_path,), nprocs=2)
    left = {path.name: torch.load(path) for path in tmp_path.glob("*.pt")}
    for rank in (0, 1):
        assert_equal(left[f"rank{rank}-True.pt"], left[f"rank{rank}-False.pt"])
    mean = "blocks.0.convolution.norm.running_mean"
    assert torch.equal(left["rank0-True.pt"][mean], left["rank1-True.pt"][mean])
    assert left["rank0-True.pt"][mean].any()
