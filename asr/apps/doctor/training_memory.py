"""Memory (bytes of live tensors) of full training, of training with a frozen encoder, and of training an adapter.

Memory is measured on 1, 2, 4, ... utterances of the largest batch, as long as they are expected to fit into memory, and
extrapolated to the whole batch: it is linear in the number of utterances.
"""

import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asr.base.settings.conf import default_settings
from asr.core.build import build_adapter
from asr.core.data.batch import Batch
from asr.core.recognition.model import Model
from asr.errors import InputError

FULL, FROZEN_ENCODER, LORA = "full", "init.frozen=[encoder.*]", "adapter=lora"


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of live tensors that operations create while the context is active; `peak` is the maximum.

    The temporary memory of operations, and the memory that an allocator reserves, are not counted.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.peak = self._live = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet(tensor.untyped_storage() for tensor in known)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count the bytes of its results; torch calls this for each operation."""
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, Tensor):
                self._count(result.untyped_storage())
        return results

    def _count(self, storage: Any) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self._live += size
        self.peak = max(self.peak, self._live)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self._live -= size


def training_memory(
    model: Model,
    batch_of: Callable[[int], Batch],
    size: int,
    autocast: Callable[[], AbstractContextManager[None]],
    average: bool,
    optimizer_bytes: Callable[[Model], float],
    free: float,
) -> dict[str, float]:
    """Forecast the bytes of tensors in a training step, by training method (`WAYS`), on copies of a model.

    Methods that the optimizer refuses are left out.

    Args:
        model: model to train, with or without an adapter; it is not changed.
        batch_of: makes a batch of this number of utterances of the largest batch, with the padding of the whole batch.
        size: number of utterances in the largest batch.
        autocast: returns the context of the forward pass.
        average: whether a moving average of the weights is stored.
        optimizer_bytes: counts the bytes of the optimizer's state for the trained weights of a model.
        free: bytes of memory that measurements may take.
    """
    needed = {}
    for name, make in WAYS.items():
        adapted = make(deepcopy(model))
        if adapted is None:
            continue
        try:
            state = optimizer_bytes(adapted)
        except InputError:
            continue

        def measure(number: int, model: Model = adapted, state: float = state) -> float:
            return step_bytes(model, batch_of(number), autocast, average, state)

        needed[name] = batch_bytes(measure, size, free)
    return needed


def batch_bytes(measure: Callable[[int], float], size: int, free: float) -> float:
    """Return the bytes of a step on a batch of `size` utterances: measured if they fit into `free`, or extrapolated.

    While gradients of the weights take more memory than activations, the first measurements are equal, so an
    extrapolation is a lower bound; it is always above `free`.

    Args:
        measure: measures the bytes of a step on a batch of this number of utterances.
        size: number of utterances in the batch, at least 1.
        free: bytes that a measurement of more than two utterances may take.
    """
    number, needed, per_utterance = 1, measure(1), 0.0
    while number < size:
        following = min(2 * number, size)
        if number > 1 and needed + per_utterance * (following - number) > free:
            return needed + per_utterance * (size - number)
        before, needed = needed, measure(following)
        per_utterance, number = (needed - before) / (following - number), following
    return needed


def step_bytes(
    model: Model,
    batch: Batch,
    autocast: Callable[[], AbstractContextManager[None]],
    average: bool,
    optimizer_bytes: float,
) -> float:
    """Measure the bytes of tensors in a training step: weights, average, gradients and activations.

    `optimizer_bytes`, the bytes of the optimizer's state, are added.
    """
    weights = weight_bytes(model)
    set_modes(model)
    state = [*model.parameters(), *model.buffers()]
    with PeakMemory([*state, batch.features, batch.feature_lengths, batch.tokens, batch.token_lengths]) as memory:
        with autocast():
            encoded = model.encode(batch)
            loss = model.head.losses(encoded, batch.targets)["loss"].sum()
        loss.backward()
    return weights * (1 + average) + optimizer_bytes + memory.peak


def set_modes(model: nn.Module) -> None:
    """Set modules without trained weights to eval mode, and all others to training mode, as a training does."""
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        module.training = not own or any(weight.requires_grad for weight in own)


def weight_bytes(model: nn.Module) -> float:
    """Count the bytes of a model's parameters and buffers."""
    return float(sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values()))


def _full(model: Model) -> Model:
    return model.requires_grad_(True)


def _frozen_encoder(model: Model) -> Model:
    model.requires_grad_(True)
    for name, weight in model.named_parameters():
        weight.requires_grad_(not name.startswith("encoder."))
    return model


def _lora(model: Model) -> Model | None:
    """Insert the adapter of conf/adapter/lora.yaml if the model has none; return None if the adapter fits no layer."""
    if all(weight.requires_grad for weight in model.parameters()):
        try:
            build_adapter(default_settings("adapter", "lora")).insert(model)
        except InputError:
            return None
    return model


WAYS: dict[str, Callable[[Model], Model | None]] = {FULL: _full, FROZEN_ENCODER: _frozen_encoder, LORA: _lora}
