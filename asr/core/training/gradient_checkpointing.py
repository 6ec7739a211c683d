"""Gradient checkpointing, which needs less memory and more time, with identical results."""

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
    """Make each block of an encoder store only its input in training, and recompute its activations for the gradients.

    *Source*: Chen et al. 2016, arXiv:1604.06174. Memory falls from the activations of all blocks to those of one block;
    a step takes about a third more time. The subsampling still stores its activations: if these need the most memory,
    as in a tiny model, the peak is the same.

    Loss, gradients, dropout, running statistics and the names in the state dict do not change. A block with collective
    operations runs them twice, in the same order on every rank.

    Args:
        encoder: encoder to change in place; its copies, including deep copies, also recompute.

    Raises:
        InputError: the encoder has no blocks.
    """
    blocks = [block.module for _, block in encoder.named_blocks()]
    if not blocks:
        must = "gradient_checkpointing must be false for an encoder that is not a stack of blocks"
        raise InputError(f"{must}; got true, and {type(encoder).__name__} has no blocks.")
    for block in blocks:
        # A wrapper module would change the names in the state dict. A closure would still refer to these blocks in a
        # deep copy of the model, such as a moving average; a partial's arguments are copied with the model.
        block.forward = partial(_forward, block)


def _forward(block: nn.Module, *inputs: Any) -> Any:
    forward = partial(type(block).forward, block)
    if not (block.training and torch.is_grad_enabled()):
        return forward(*inputs)
    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=partial(_contexts, block))


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of the forward pass and of the recomputation."""
    return nullcontext(), _BuffersAsNow(block)


class _BuffersAsNow:
    """A context in which a module's buffers have the values that they had when the context was constructed.

    On exit, the current values are restored. The recomputation therefore starts with the same buffers as the forward
    pass, and running statistics count a batch once. The context may be entered several times, because backward can
    run several times on a retained graph.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._now = _values(module)

    def __enter__(self) -> None:
        self._before = _values(self.module)
        _set(self.module, self._now)

    def __exit__(self, *_: object) -> None:  # torch ends the recomputation with an exception
        _set(self.module, self._before)


def _values(module: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.detach().clone() for name, buffer in module.named_buffers()}


@torch.no_grad()
def _set(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, buffer in module.named_buffers():
        buffer.copy_(values[name])
