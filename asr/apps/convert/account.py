"""Conversion of tensors between another toolkit's model and asr's, in both directions; each tensor is accounted for.

In names, `ours` stands for tensors of asr, and `theirs` for tensors of the other toolkit.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from asr.apps.convert.tensors import COUNTER
from asr.errors import InputError

COMPARED = 1e-5  # tolerance for tensors that asr computes itself, in addition to the rounding error of their type
RUNNING_MEAN = ".running_mean"  # end of the name of one tensor of each batch norm


class Layout(NamedTuple):
    """Conversion between one of asr's tensors and one or several tensors of the other toolkit.

    Args:
        shapes: computes the shapes of the toolkit's tensors from the shape of asr's tensor.
        join: converts the toolkit's tensors to asr's tensor.
        part: converts asr's tensor to the toolkit's tensors.
        num_folded: number of the toolkit's tensors whose values the conversion from the toolkit merges into others.
    """

    shapes: Callable[[torch.Size], Sequence[tuple[int, ...]]]
    join: Callable[..., Tensor]
    part: Callable[[Tensor], Sequence[Tensor]]
    num_folded: int = 0


class Row(NamedTuple):
    """The name of one of asr's tensors, the names of the other toolkit's tensors, and the conversion."""

    ours: str
    theirs: tuple[str, ...]
    layout: Layout


class Counterparts(NamedTuple):
    """The other toolkit's tensors for those of asr.

    Args:
        row: returns the counterparts of one of asr's tensors, given its name; InputError: there are none.
        computed: tensors that the toolkit stores, but asr computes from the features' settings.
        unneeded: names of tensors that only the toolkit's training needs.
    """

    row: Callable[[str], Row]
    computed: Mapping[str, Tensor] = MappingProxyType({})
    unneeded: Collection[str] = ()


class Account(NamedTuple):
    """Numbers of the other toolkit's tensors, by use.

    Args:
        taken: tensors that were converted.
        folded: biases that were added to another bias, and weights that were multiplied by a scale.
        compared: tensors that asr does not store; they were compared with tensors that asr computes.
        not_needed: tensors that asr does not need.
    """

    taken: int
    folded: int
    compared: int
    not_needed: int


SAME = Layout(lambda shape: [shape], lambda x: x, lambda x: [x])
ONE_FRAME = Layout(lambda shape: [(*shape, 1)], lambda x: x[:, :, 0], lambda x: [x[:, :, None]])
HEADS = Layout(lambda shape: [(shape[0], shape[2])], lambda x: x[:, None], lambda x: [x[:, 0]])
THREE = Layout(
    lambda shape: 3 * [(shape[0] // 3, *shape[1:])], lambda *parts: torch.cat(parts), lambda x: list(x.chunk(3))
)
# asr's bias is the sum of two biases of the other toolkit. Conversion from asr sets the second of them to zero.
SUM = Layout(lambda shape: 2 * [shape], lambda x, y: x + y, lambda x: [x, torch.zeros_like(x)], num_folded=1)


def scaled(scale: float) -> Layout:
    """Return a layout that multiplies the toolkit's tensor by `scale`; conversion from asr does not divide by it."""
    return Layout(lambda shape: [shape], lambda x: (x.double() * scale).float(), lambda x: [x], num_folded=1)


def outputs(blank: int | None, layout: Layout = SAME) -> Layout:
    """Return a layout that moves row `blank` (None: the last row) of the toolkit's tensor to row 0 of asr's tensor."""

    def first(x: Tensor) -> Tensor:
        number = len(x) - 1 if blank is None else blank
        return torch.cat([x[number : number + 1], x[:number], x[number + 1 :]])

    def back(x: Tensor) -> Tensor:
        number = len(x) - 1 if blank is None else blank
        return torch.cat([x[1 : number + 1], x[:1], x[number + 1 :]])

    return Layout(layout.shapes, lambda x: first(layout.join(x)), lambda x: layout.part(back(x)))


def take(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, torch.Size], counterparts: Counterparts
) -> tuple[dict[str, Tensor], Account]:
    """Convert the other toolkit's tensors to asr's; every tensor must be used, or be known to be unneeded.

    Args:
        tensors: tensors of the other toolkit, by name.
        shapes: shapes of asr's tensors, by name.
        counterparts: the other toolkit's tensors for those of asr.
    """
    left = dict(tensors)
    ours: dict[str, Tensor] = {}
    folded = 0
    for name, shape in shapes.items():
        _, theirs, layout = counterparts.row(name)
        folded += layout.num_folded
        parts = [_take(left, part, size) for part, size in zip(theirs, layout.shapes(shape), strict=True)]
        ours[name] = layout.join(*parts).clone(
            memory_format=torch.contiguous_format
        )  # cloned, because the other toolkit's layers may share a tensor
    taken = len(tensors) - len(left) - folded
    compared = [_compare(left, name, computed) for name, computed in counterparts.computed.items() if name in left]
    unneeded = [name for name in left if name.endswith(COUNTER) or name in counterparts.unneeded]
    left_over = sorted(left.keys() - set(unneeded))
    if left_over:
        more = f" (and {len(left_over) - 1:,} more)" if len(left_over) > 1 else ""
        raise InputError(f"every tensor must have a counterpart in asr's model; {left_over[0]}{more} has none.")
    return ours, Account(taken, folded, len(compared), len(unneeded))


def _take(left: dict[str, Tensor], name: str, shape: Sequence[int]) -> Tensor:
    """Remove a tensor from the remaining tensors, check it, and return it in float32."""
    if name not in left:
        raise InputError(f"the weights must contain {name}, of shape {tuple(shape)}; it is missing.")
    tensor = left.pop(name)
    if tensor.shape != tuple(shape):
        raise InputError(f"{name} must be {tuple(shape)}, as the config says; got {tuple(tensor.shape)}.")
    tensor = tensor.to(torch.float32)
    if not bool(tensor.isfinite().all()):
        raise InputError(f"{name} must hold finite numbers; it holds NaN or infinity.")
    return tensor


def _compare(left: dict[str, Tensor], name: str, computed: Tensor) -> float:
    """Compare a tensor with the tensor that the features compute; return the largest difference."""
    tolerance = COMPARED + torch.finfo(left[name].dtype).eps
    tensor = _take(left, name, computed.shape)
    off = float((tensor - computed).abs().max())
    if off > tolerance:
        raise InputError(f"{name} must equal the tensor that asr's features compute; it differs by {off:.2g}.")
    return off


def give(weights: Mapping[str, Tensor], counterparts: Counterparts) -> dict[str, Tensor]:
    """Convert asr's tensors to the toolkit's, and add tensors that only the toolkit stores.

    The added tensors are the counters of batch norms, and tensors that asr computes from the features' settings, such
    as the mel filters.
    """
    theirs = {name: computed.contiguous() for name, computed in counterparts.computed.items()}
    for ours, weight in weights.items():
        _, their_names, layout = counterparts.row(ours)
        parts = layout.part(weight.to(torch.float32))
        theirs |= {name: part.contiguous() for name, part in zip(their_names, parts, strict=True)}
        if ours.endswith(RUNNING_MEAN):
            theirs[their_names[0].removesuffix(RUNNING_MEAN) + COUNTER] = torch.tensor(0)
    return theirs
