"""Weights that stay as they are while others are trained, for the whole run or for its first steps."""

import logging
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

from asr.errors import InputError
from asr.text.numbers import counted

logger = logging.getLogger(__name__)


class Frozen(pl.callbacks.Callback):
    """Keep weights as they are, and the running statistics of their modules.

    Those of the whole run take no gradient, and the optimizer does not know them. Those of the first steps do: what is
    computed for them is thrown away. DDP asks which weights have gradients before the first step and not again, and the
    largest batch, which is tried then, has to fit with all of them.

    Weights that take no gradient already, the base of an adapter, are among those of the whole run.

    Args:
        model: whose weights.
        patterns: of their names, such as `encoder.*`, `encoder.blocks.0.*`.
        steps: optimizer steps for which they stay; None: for the whole run.

    Raises:
        InputError: no weight fits a pattern, or none would be trained, or there are steps without a pattern.
    """

    def __init__(self, model: nn.Module, patterns: Sequence[str], steps: int | None) -> None:
        named = dict(model.named_parameters())
        if steps is not None and not patterns:
            raise InputError(f"init.frozen_steps must go with init.frozen, which names weights; got {steps} and [].")
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in named):
                raise InputError(f"init.frozen must name weights, such as encoder.subsampling.*; got {pattern!r}.")
        names = [
            name
            for name, weight in named.items()
            if not weight.requires_grad or any(fnmatchcase(name, pattern) for pattern in patterns)
        ]
        if patterns and len(names) == len(named):
            raise InputError(f"init.frozen must leave weights to train; got {', '.join(patterns)}.")
        self._steps = steps
        self._weights = [named[name] for name in names]
        self._modules = [module for module in model.modules() if self._has_all_of(module)]
        self._were_frozen: bool | None = None
        if steps is None:
            for weight in self._weights:
                weight.requires_grad_(False)
        if names:
            frozen, total = (sum(weight.numel() for weight in weights) for weights in (self._weights, named.values()))
            how_long = "in the whole run" if steps is None else f"in the first {counted(steps, 'step')}"
            logger.info(
                "%s of %s parameters are frozen %s; %.2f %% are trained",
                f"{frozen:,}",
                f"{total:,}",
                how_long,
                100 * (1 - frozen / total),
            )

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Lightning's hook: in eval mode statistics stay."""
        frozen = self._are_frozen(trainer.global_step)
        if self._were_frozen and not frozen:
            what = "the weights that init.frozen names are trained from here on"
            logger.info("step %d: %s", trainer.global_step, what)
        self._were_frozen = frozen
        for module in self._modules:
            module.training = not frozen  # its own alone: what lies in it may be trained

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Lightning's hook, before gradients are divided and clipped."""
        if self._are_frozen(trainer.global_step):
            for weight in self._weights:
                weight.grad = None  # AdamW passes over them: no decay, no moments, no step counted

    def _are_frozen(self, step: int) -> bool:
        return self._steps is None or step < self._steps

    def _has_all_of(self, module: nn.Module) -> bool:
        """Tell whether a module has weights of its own, and all of them are among these."""
        ids = {id(weight) for weight in self._weights}
        own = list(module.parameters(recurse=False))
        return bool(own) and all(id(weight) in ids for weight in own)
