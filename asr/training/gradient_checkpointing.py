"""Gradient checkpointing: less memory for more time, and the same numbers."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from asr.errors import InputError
from asr.interfaces import Encoder


def recompute_blocks(encoder: Encoder) -> None:
    """Make each block of an encoder keep its input only in training, and compute the rest again for the gradients.

    *Source*: Chen et al. 2016, arXiv:1604.06174: memory falls from all activations of all blocks to those of one, for
    about a third more time.

    Loss, gradients, dropout, running statistics and the names in the state dict are as without. A block that
    communicates with other ranks does so once more, on every rank in the same order.

    Args:
        encoder: changed in place. Copies of it, deep ones too, do the same.

    Raises:
        InputError: it has no blocks.
    """
    if not encoder.blocks:
        must = "gradient_checkpointing must be false for an encoder that is not a stack of blocks"
        raise InputError(f"{must}; got true, and {type(encoder).__name__} has no blocks.")
    for block in encoder.blocks:
        # Not a module around it, which would change the names in the state dict. Not a closure either: a deep copy of
        # the model (a moving average, say) copies what a partial holds, so that its blocks use their own weights.
        block.forward = partial(_forward, block)


def _forward(block: nn.Module, *inputs: Any) -> Any:
    forward = partial(type(block).forward, block)
    if not (block.training and torch.is_grad_enabled()):
        return forward(*inputs)
    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=partial(_contexts, block))


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return what the forward pass runs in, and what the recomputation does."""
    return nullcontext(), _BuffersAsNow(block)


class _BuffersAsNow:
    """A context in which a module's buffers have the values that they have now; after it, those of before it.

    So the recomputation begins where the forward pass began, and does not count its batch twice. It may be entered
    more than once, as a graph that is retained can be walked more than once.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._now = _values(module)

    def __enter__(self) -> None:
        self._before = _values(self.module)
        _set(self.module, self._now)

    def __exit__(self, *_: object) -> None:  # torch ends the recomputation by an exception, once it has all it needs
        _set(self.module, self._before)


def _values(module: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.detach().clone() for name, buffer in module.named_buffers()}


@torch.no_grad()
def _set(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, buffer in module.named_buffers():
        buffer.copy_(values[name])
