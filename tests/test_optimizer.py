"""AdamW's groups: only matrices have weight decay, and the learning rate falls towards the input."""

import pytest
import torch
from torch import nn

from asr.components.optimizer.adamw import AdamW
from asr.core.build import component
from asr.core.recognition.depths import places
from asr.interfaces import WeightPlace
from tests.conftest import resolved
from tests.refusals import mentions


def groups(layer_decay: float) -> dict[int, tuple[float, float]]:
    """Return the learning rate and the weight decay of each parameter of a small net; each key is a parameter's id."""
    make = AdamW(lr=0.1, betas=[0.9, 0.98], eps=1e-9, weight_decay=0.5, layer_decay=layer_decay)
    optimizer = make(NET.named_parameters(), PLACES)
    return {id(p): (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.subsampling = nn.Linear(2, 2)
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
        self.norm_output = nn.LayerNorm(2)


NET = nn.ModuleDict({"encoder": Encoder(), "head": nn.Linear(2, 5)})
PLACES = places(
    NET,
    {
        name: 0 if "subsampling" in name else 1 + int(name.split(".")[2])
        for name, _ in NET.named_parameters()
        if "subsampling" in name or "blocks" in name
    },
)
BELOW = {"head.": 0, "encoder.norm_output.": 0, "encoder.blocks.2.": 1, "encoder.blocks.1.": 2, "encoder.blocks.0.": 3}


@pytest.mark.parametrize("layer_decay", [1.0, 0.9, 0.5])
def test_each_block_has_the_learning_rate_of_the_next_block_times_the_decay(layer_decay: float) -> None:
    actual = groups(layer_decay)
    assert len(actual) == len(list(NET.parameters()))
    for name, parameter in NET.named_parameters():
        below = next((number for prefix, number in BELOW.items() if name.startswith(prefix)), 4)
        rate, weight_decay = actual[id(parameter)]
        assert rate == pytest.approx(0.1 * layer_decay**below), name
        assert weight_decay == (0.5 if parameter.ndim > 1 else 0.0), name


def test_without_layer_decay_there_are_two_groups_and_matrices_come_first() -> None:
    optimizer = AdamW(lr=0.1, betas=[0.9, 0.98], eps=1e-9, weight_decay=0.5, layer_decay=1.0)(
        NET.named_parameters(), PLACES
    )
    dims = [{parameter.ndim > 1 for parameter in group["params"]} for group in optimizer.param_groups]
    assert dims == [{True}, {False}]
    assert isinstance(optimizer, torch.optim.AdamW)


@pytest.mark.parametrize("encoder", ["conformer_xs", "transformer_xl", "lstm"])
def test_only_weights_of_layers_are_decayed_and_not_the_biases_of_relative_attention(encoder: str) -> None:
    make = AdamW(lr=0.1, betas=[0.9, 0.98], eps=1e-9, weight_decay=0.5, layer_decay=1.0)
    net = component("encoder", resolved(f"encoder={encoder}")["encoder"])(80)
    groups = make(net.named_parameters(), {}).param_groups
    decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    for name, parameter in net.named_parameters():
        owner = net.get_submodule(name.rpartition(".")[0])
        is_layer = isinstance(owner, nn.Linear | nn.Conv1d | nn.Conv2d | nn.RNNBase)
        assert (id(parameter) in decayed) == (is_layer and "weight" in name), name


def test_a_layer_decay_that_no_trained_weight_has_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    make = AdamW(lr=0.1, betas=[0.9, 0.98], eps=1e-9, weight_decay=0.5, layer_decay=0.9)
    make(nn.Linear(2, 2).named_parameters(), {"weight": WeightPlace(1, 1)})
    assert not caplog.records
    make(nn.Linear(2, 2).named_parameters(), {"encoder.blocks.0.weight": WeightPlace(1, 1)})
    (record,) = caplog.records
    assert mentions(record.message, "optimizer.layer_decay ... 0.9 ... 1")
