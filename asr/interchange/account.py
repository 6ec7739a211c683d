"""The tensors of another toolkit's Conformer-CTC and those of ours: which is which, for both directions."""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from asr.errors import InputError
from asr.features.slaney_fbank import SlaneyFbank
from asr.interchange.tensors import COUNTER

COMPARED = 1e-5  # by how much what is computed again may differ, beside the rounding of its type
HEAD = "head.linear"
QKV = "attention.qkv"
U_AND_V = ("attention.u", "attention.v")
POINTWISE = ("convolution.pointwise1", "convolution.pointwise2")  # theirs are convolutions over one frame
FOLDED = "encoder.subsampling.linear."
BATCH_NORM = re.compile(r"encoder\.blocks\.\d+\.convolution\.norm\.running_mean")  # one of each
STAGES = {
    "0": 0,
    "1.0": 2,
    "1.1": 3,
    "2.0": 5,
    "2.1": 6,
}  # of depthwise_conv: convolutions and their numbers
SHARED_BLOCK: dict[str, str | tuple[str, ...]] = {  # of a block, our modules: theirs, where all toolkits agree
    "norm_feed_forward1": "norm_feed_forward1",
    "feed_forward1.linear1": "feed_forward1.linear1",
    "feed_forward1.linear2": "feed_forward1.linear2",
    "norm_attention": "norm_self_att",
    "norm_convolution": "norm_conv",
    "convolution.pointwise1": "conv.pointwise_conv1",
    "convolution.depthwise": "conv.depthwise_conv",
    "convolution.pointwise2": "conv.pointwise_conv2",
    "norm_feed_forward2": "norm_feed_forward2",
    "feed_forward2.linear1": "feed_forward2.linear1",
    "feed_forward2.linear2": "feed_forward2.linear2",
    "norm_output": "norm_out",
}


class Names(NamedTuple):
    """What another toolkit calls the parts of a Conformer-CTC.

    Args:
        toolkit: its own name.
        outside: our modules outside of the blocks: theirs.
        blocks: what comes before a block's number.
        block: of a block, our modules and parameters: theirs. Queries, keys and values have one each.
        computed: tensors that follow from the features, which it keeps too.
        blank: the blank's number among the outputs of its head; None: the last.
        transducer: tensors of ours that theirs of other names or another layout are, by name: those of a transducer.
    """

    toolkit: str
    outside: Mapping[str, str]
    blocks: str
    block: Mapping[str, str | tuple[str, ...]]
    computed: Mapping[str, Callable[[SlaneyFbank], Tensor]]
    blank: int | None
    transducer: "Mapping[str, tuple[tuple[str, ...], Layout]]" = MappingProxyType({})


def stages(theirs: str) -> dict[str, str]:
    """Name the convolutions of subsampling=depthwise_conv, which `theirs` lists with activations in between."""
    return {f"encoder.subsampling.stages.{ours}": f"{theirs}.{number}" for ours, number in STAGES.items()}


class Layout(NamedTuple):
    """How a tensor of ours lies in theirs.

    Args:
        shapes: of theirs, given the shape of ours.
        join: theirs to ours.
        part: ours to theirs.
    """

    shapes: Callable[[torch.Size], Sequence[tuple[int, ...]]]
    join: Callable[..., Tensor]
    part: Callable[[Tensor], Sequence[Tensor]]


class Row(NamedTuple):
    """One of our tensors, the names of those of theirs that it is made of, and how."""

    ours: str
    theirs: tuple[str, ...]
    layout: Layout


class Account(NamedTuple):
    """What became of a model's tensors: how many of each."""

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
# One bias of ours is the sum of two of theirs; on the way back the first is that sum and the second zero.
SUM = Layout(lambda shape: 2 * [shape], lambda x, y: x + y, lambda x: [x, torch.zeros_like(x)])


def outputs(blank: int | None, layout: Layout = SAME) -> Layout:
    """A layout of rows of which theirs with number `blank` is our first."""

    def first(x: Tensor) -> Tensor:
        number = len(x) - 1 if blank is None else blank
        return torch.cat([x[number : number + 1], x[:number], x[number + 1 :]])

    def back(x: Tensor) -> Tensor:
        number = len(x) - 1 if blank is None else blank
        return torch.cat([x[1 : number + 1], x[:1], x[number + 1 :]])

    return Layout(layout.shapes, lambda x: first(layout.join(x)), lambda x: layout.part(back(x)))


def row(ours: str, names: Names) -> Row:
    """Find what of theirs one of our tensors is made of.

    Raises:
        InputError: they have none like it.
    """
    if ours in names.transducer:
        return Row(ours, *names.transducer[ours])
    module, _, kind = ours.rpartition(".")
    is_weight = kind == "weight"
    if module in names.outside:
        layout = outputs(names.blank, ONE_FRAME if is_weight else SAME) if module == HEAD else SAME
        return Row(ours, (f"{names.outside[module]}.{kind}",), layout)
    block = re.fullmatch(r"encoder\.blocks\.(\d+)\.(.+)", ours)
    begin, part = (f"{names.blocks}.{block[1]}", block[2]) if block else ("", "")
    if part in U_AND_V:
        return Row(ours, (f"{begin}.{names.block[part]}",), HEADS)
    part = part.rpartition(".")[0]
    if part == QKV:
        return Row(ours, tuple(f"{begin}.{theirs}.{kind}" for theirs in names.block[part]), THREE)
    if part in names.block:
        is_convolution = part in POINTWISE and is_weight
        return Row(ours, (f"{begin}.{names.block[part]}.{kind}",), ONE_FRAME if is_convolution else SAME)
    must = f"{ours} must be a tensor that {names.toolkit}'s Conformer-CTC has, too"
    raise InputError(f"{must}; it has none like it.")


def take(
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, torch.Size],
    names: Names,
    features: SlaneyFbank,
    scale: float,
) -> tuple[dict[str, Tensor], Account]:
    """Make our tensors of theirs, of which each is accounted for.

    Args:
        tensors: theirs.
        shapes: of ours, by name.
        names: of theirs.
        features: what is computed of which is compared.
        scale: that they multiply the subsampling's output by.

    Raises:
        InputError: naming a tensor that is missing, left over, of another shape, not finite, or not the features'.
    """
    left = dict(tensors)
    ours: dict[str, Tensor] = {}
    folded = 0
    for name, shape in shapes.items():
        _, theirs, layout = row(name, names)
        folded += layout is SUM
        parts = [_take(left, part, size) for part, size in zip(theirs, layout.shapes(shape), strict=True)]
        ours[name] = layout.join(*parts).clone(memory_format=torch.contiguous_format)  # their layers may share one
        if scale != 1 and name.startswith(FOLDED):
            ours[name] = (ours[name].double() * scale).float()
            folded += 1
    taken = len(tensors) - len(left) - folded
    compared = [_compare(left, name, made(features)) for name, made in names.computed.items() if name in left]
    unneeded = [name for name in left if name.endswith(COUNTER)]
    left_over = sorted(left.keys() - set(unneeded))
    if left_over:
        more = f", and {len(left_over) - 1:,} others" if len(left_over) > 1 else ""
        raise InputError(f"every tensor must have its place in our Conformer-CTC; {left_over[0]}{more} has none.")
    return ours, Account(taken, folded, len(compared), len(unneeded))


def _take(left: dict[str, Tensor], name: str, shape: Sequence[int]) -> Tensor:
    """Take one of the tensors that are left, in float32."""
    if name not in left:
        raise InputError(f"{name} must be there, {tuple(shape)}; it is missing.")
    tensor = left.pop(name)
    if tensor.shape != tuple(shape):
        raise InputError(f"{name} must be {tuple(shape)}, as the config says; got {tuple(tensor.shape)}.")
    tensor = tensor.to(torch.float32)
    if not bool(tensor.isfinite().all()):
        raise InputError(f"{name} must hold finite numbers; it holds NaN or infinity.")
    return tensor


def _compare(left: dict[str, Tensor], name: str, computed: Tensor) -> float:
    """Compare a tensor that the features compute again; give by how much it differs."""
    tolerance = COMPARED + torch.finfo(left[name].dtype).eps
    tensor = _take(left, name, computed.shape)
    off = float((tensor - computed).abs().max())
    if off > tolerance:
        raise InputError(f"{name} must be what features=slaney_fbank computes; it differs by {off:.2g}.")
    return off


def give(weights: Mapping[str, Tensor], names: Names, features: SlaneyFbank) -> dict[str, Tensor]:
    """Make their tensors of ours, with those that they compute, or count, themselves.

    Raises:
        InputError: naming one of ours that they have not.
    """
    theirs = {name: made(features).contiguous() for name, made in names.computed.items()}
    for ours, weight in weights.items():
        _, there, layout = row(ours, names)
        parts = layout.part(weight.to(torch.float32))
        theirs |= {name: part.contiguous() for name, part in zip(there, parts, strict=True)}
        if BATCH_NORM.fullmatch(ours):
            theirs[there[0].rpartition(".")[0] + COUNTER] = torch.tensor(0)
    return theirs
