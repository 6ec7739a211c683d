"""Frozen weights, for the whole run or for its first steps."""

import logging
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

from asr.base.text.numbers import counted
from asr.errors import InputError

logger = logging.getLogger(__name__)


class Frozen(pl.callbacks.Callback):
    """Freeze weights and the running statistics of their modules.

    Weights frozen for the whole run require no gradient, and the optimizer does not contain them. Weights frozen for
    the first steps require gradients, which are discarded. There are two reasons to compute these gradients: DDP
    determines only once, before the first step, which weights have gradients; and the trial of the largest batch must
    include the memory of all gradients.

    Weights that already require no gradient, such as the base of an adapter, stay frozen for the whole run.

    Args:
        model: model whose weights are frozen.
        patterns: patterns of weight names, such as `encoder.*`, `encoder.blocks.0.*`.
        steps: number of optimizer steps; None: the whole run.

    Raises:
        InputError: a pattern matches no weight, all weights would be frozen, or steps are given without a pattern.
    """

    def __init__(self, model: nn.Module, patterns: Sequence[str], steps: int | None) -> None:
        named = dict(model.named_parameters())
        if steps is not None and not patterns:
            raise InputError(f"init.frozen_steps must come with init.frozen, which names weights; got {steps} and [].")
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in named):
                parts = dict.fromkeys(".".join(name.split(".")[:2]) + ".*" for name in named)
                must = f"init.frozen must name weights, such as {', '.join(parts)}"
                raise InputError(f"{must}; got {pattern!r}.")
        names = [
            name
            for name, weight in named.items()
            if not weight.requires_grad or any(fnmatchcase(name, pattern) for pattern in patterns)
        ]
        if patterns and len(names) == len(named):
            raise InputError(f"init.frozen must leave weights to train; got {', '.join(patterns)}.")
        self._steps = steps
        self._model = model
        self._names = names  # names, because trainer.strategy=fsdp replaces the weights
        weights = [named[name] for name in names]
        self._modules = [module for module in model.modules() if _has_all_of(module, weights)]
        self._were_frozen: bool | None = None
        if steps is None:
            for weight in weights:
                weight.requires_grad_(False)
        if names:
            frozen, total = (sum(weight.numel() for weight in group) for group in (weights, named.values()))
            duration = "in the whole run" if steps is None else f"in the first {counted(steps, 'step')}"
            logger.info(
                "%s of %s parameters are frozen %s; %.2f %% are trained",
                f"{frozen:,}",
                f"{total:,}",
                duration,
                100 * (1 - frozen / total),
            )

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set frozen modules to eval mode, in which their running statistics do not change."""
        frozen = self._are_frozen(trainer.global_step)
        if self._were_frozen and not frozen:
            logger.info("step %d: the weights of init.frozen are trained from now on", trainer.global_step)
        self._were_frozen = frozen
        for module in self._modules:
            module.training = not frozen  # train() would also change submodules

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Discard the gradients of frozen weights before gradients are divided and clipped."""
        if self._steps is not None and trainer.global_step < self._steps:  # None: the weights have no gradients
            for name in self._names:
                self._model.get_parameter(name).grad = None  # optimizers skip weights without a gradient

    def _are_frozen(self, step: int) -> bool:
        return self._steps is None or step < self._steps


def _has_all_of(module: nn.Module, weights: Sequence[nn.Parameter]) -> bool:
    """Return whether a module has weights of its own, all of which are among the given weights."""
    ids = {id(weight) for weight in weights}
    own = list(module.parameters(recurse=False))
    return bool(own) and all(id(weight) in ids for weight in own)
