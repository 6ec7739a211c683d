"""The optimizer AdamW."""

import logging
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import torch
from torch import nn

from asr.base.settings.rule import PROBABILITY, Eps, above, list_of, number
from asr.interfaces import WeightPlace

logger = logging.getLogger(__name__)

ATTENTION_BIASES = ("u", "v")  # biases of relative attention, one vector per head


class AdamW:
    """Adam with decoupled weight decay, which applies to matrices and kernels, not to norms and biases.

    *Source*: Loshchilov and Hutter 2019, arXiv:1711.05101, as implemented by torch.

    Args:
        lr: learning rate at the schedule's peak.
        betas: decay of the running means of the gradient and of its square.
        eps: added to the square root of the mean squared gradient.
        weight_decay: decay of matrices and kernels per step, relative to the learning rate.
        layer_decay: learning rate of each encoder block, relative to the next block's, and of the front-end, relative
            to the first block's, so that fine-tuning changes general, lower layers less (Howard and Ruder 2018,
            arXiv:1801.06146, section 3.2). 1: equal rates.
    """

    def __init__(
        self,
        *,
        lr: Annotated[float, number(0, 1_000)],
        betas: Annotated[list[float], list_of(PROBABILITY, "of two numbers from 0 to less than 1", 2, 2)],
        eps: Eps,
        weight_decay: Annotated[float, number(0, 1_000)],
        layer_decay: Annotated[float, above(0, 1)],
    ) -> None:
        self._layer_decay = layer_decay
        self._settings: dict[str, Any] = {
            "lr": lr,
            "betas": tuple(map(float, betas)),
            "eps": eps,
            "weight_decay": weight_decay,
        }

    def __call__(
        self, named_parameters: Iterable[tuple[str, nn.Parameter]], places: Mapping[str, WeightPlace]
    ) -> torch.optim.Optimizer:
        """Return the optimizer of these parameters, whose `places` are those of `OptimizerMaker`."""
        groups: list[dict[str, Any]] = [
            {"params": [weight for _, weight in named], "lr": self._settings["lr"] * factor}
            | ({} if decays else {"weight_decay": 0.0})
            for factor, decays, named in rate_groups(named_parameters, places, self._layer_decay)
        ]
        return torch.optim.AdamW(groups, **self._settings, fused=True)  # one pass over the weights: less memory traffic


class RateGroup(NamedTuple):
    """Weights with equal settings.

    Args:
        factor: learning rate, relative to that of weights outside of the encoder's blocks.
        decays: whether weight decay applies.
        named: the weights, with their names.
    """

    factor: float
    decays: bool
    named: list[tuple[str, nn.Parameter]]


def rate_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]], places: Mapping[str, WeightPlace], layer_decay: float
) -> list[RateGroup]:
    """Group weights by learning rate, from the highest on, and by weight decay.

    Args:
        named_parameters: the trained weights, with their names.
        places: as in `OptimizerMaker`.
        layer_decay: learning rate of each block, relative to the next block's.
    """
    trained = dict(named_parameters)
    if layer_decay != 1 and places.keys().isdisjoint(trained):
        must = "optimizer.layer_decay must be 1 unless weights of the encoder's blocks are trained"
        logger.warning("%s; got %g, which changes nothing. Give 1.", must, layer_decay)
    top = max((places[name].depth for name in trained if name in places), default=0) + 1
    members: dict[
        tuple[int, bool], list[tuple[str, nn.Parameter]]
    ] = {}  # weights by the power of layer_decay in their learning rate, and by whether weight decay applies
    for name, weight in trained.items():
        below = 0 if name not in places or layer_decay == 1 else top - places[name].depth
        members.setdefault((below, _decays(name, weight)), []).append((name, weight))
    ordered = sorted(members, key=lambda member: (member[0], not member[1]))
    return [RateGroup(layer_decay**below, decays, members[below, decays]) for below, decays in ordered]


def _decays(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim > 1 and name.rpartition(".")[2] not in ATTENTION_BIASES
