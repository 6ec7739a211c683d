"""The optimizer AdamW."""

import logging
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import torch
from torch import nn

from asr.base.settings.rule import PROBABILITY, Eps, above, list_of, number

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
        self, named_parameters: Iterable[tuple[str, nn.Parameter]], depths: Mapping[str, int]
    ) -> torch.optim.Optimizer:
        """Return the optimizer of these parameters, whose `depths` are those of `OptimizerMaker`."""
        trained = dict(named_parameters)
        if self._layer_decay != 1 and depths.keys().isdisjoint(trained):
            must = "optimizer.layer_decay must be 1 unless weights of the encoder's blocks are trained"
            logger.warning("%s; got %g, which changes nothing. Give 1.", must, self._layer_decay)
        top = max((depths[name] for name in trained if name in depths), default=0) + 1
        members: dict[
            tuple[int, bool], list[nn.Parameter]
        ] = {}  # parameters by the power of layer_decay in their learning rate, and by whether weight decay applies
        for name, parameter in trained.items():
            below = 0 if name not in depths or self._layer_decay == 1 else top - depths[name]
            members.setdefault((below, _decays(name, parameter)), []).append(parameter)
        groups: list[dict[str, Any]] = [
            {"params": members[below, decays], "lr": self._settings["lr"] * self._layer_decay**below}
            | ({} if decays else {"weight_decay": 0.0})
            for below, decays in sorted(members, key=lambda member: (member[0], not member[1]))
        ]
        return torch.optim.AdamW(groups, **self._settings, fused=True)  # one pass over the weights: less memory traffic


def _decays(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim > 1 and name.rpartition(".")[2] not in ATTENTION_BIASES
