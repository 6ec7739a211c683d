"""Conversion of tensors between another toolkit's Conformer-CTC and asr's, in both directions.

In names, `ours` stands for tensors of asr, and `theirs` for tensors of the other toolkit.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from asr.errors import InputError
from asr.features.slaney_fbank import SlaneyFbank
from asr.interchange.tensors import COUNTER

COMPARED = 1e-5  # tolerance for tensors that asr computes itself, in addition to the rounding error of their type
HEAD = "head.linear"
QKV = "attention.qkv"
U_AND_V = ("attention.u", "attention.v")
POINTWISE = ("convolution.pointwise1", "convolution.pointwise2")  # linear layers in asr; convolutions in the toolkits
FOLDED = "encoder.subsampling.linear."
BATCH_NORM = re.compile(r"encoder\.blocks\.\d+\.convolution\.norm\.running_mean")  # matches once per batch norm
STAGES = {
    "0": 0,
    "1.0": 2,
    "1.1": 3,
    "2.0": 5,
    "2.1": 6,
}  # the convolutions of subsampling=depthwise_conv: asr's name to the number of the layer in the other toolkits


class Names(NamedTuple):
    """Another toolkit's names for the parts of a Conformer-CTC.

    Args:
        toolkit: name of the toolkit.
        outside: maps asr's modules outside of the blocks to the toolkit's modules.
        blocks: prefix before a block's number.
        block: maps asr's modules and parameters in a block to the toolkit's modules and parameters. The toolkit has
            separate modules for queries, keys and values.
        computed: maps tensors that the toolkit stores, but asr computes from the features' settings, to functions that
            compute them.
        blank: index of the blank among the outputs of the head; None: the last output.
        transducer: maps a transducer's tensors that `outside` does not cover to the toolkit's tensors and the layout.
    """

    toolkit: str
    outside: Mapping[str, str]
    blocks: str
    block: Mapping[str, str | tuple[str, ...]]
    computed: Mapping[str, Callable[[SlaneyFbank], Tensor]]
    blank: int | None
    transducer: "Mapping[str, tuple[tuple[str, ...], Layout]]" = MappingProxyType({})


def block_names(
    qkv: tuple[str, str, str], position: str, biases: tuple[str, str], output: str, norm: str
) -> dict[str, str | tuple[str, ...]]:
    """Map asr's names of the parts of a block to another toolkit's names.

    Args:
        qkv: names of the attention's projections to queries, keys and values.
        position: name of the projection of positions.
        biases: names of the biases u and v.
        output: name of the attention's last projection.
        norm: name of the norm in the convolution.
    """
    u, v = biases
    return {
        "norm_feed_forward1": "norm_feed_forward1",
        "feed_forward1.linear1": "feed_forward1.linear1",
        "feed_forward1.linear2": "feed_forward1.linear2",
        "norm_attention": "norm_self_att",
        "attention.qkv": tuple(f"self_attn.{name}" for name in qkv),
        "attention.position": f"self_attn.{position}",
        "attention.u": f"self_attn.{u}",
        "attention.v": f"self_attn.{v}",
        "attention.output": f"self_attn.{output}",
        "norm_convolution": "norm_conv",
        "convolution.pointwise1": "conv.pointwise_conv1",
        "convolution.depthwise": "conv.depthwise_conv",
        "convolution.norm": f"conv.{norm}",
        "convolution.norm.norm": f"conv.{norm}",  # norm=layer_norm
        "convolution.pointwise2": "conv.pointwise_conv2",
        "norm_feed_forward2": "norm_feed_forward2",
        "feed_forward2.linear1": "feed_forward2.linear1",
        "feed_forward2.linear2": "feed_forward2.linear2",
        "norm_output": "norm_out",
    }


def stages(theirs: str) -> dict[str, str]:
    """Map the names of asr's convolutions (subsampling=depthwise_conv) to the other toolkit's names.

    Args:
        theirs: the toolkit's list of layers; its convolutions are named by their numbers in this list.
    """
    return {f"encoder.subsampling.stages.{ours}": f"{theirs}.{number}" for ours, number in STAGES.items()}


class Layout(NamedTuple):
    """Conversion between one of asr's tensors and one or several tensors of the other toolkit.

    Args:
        shapes: computes the shapes of the toolkit's tensors from the shape of asr's tensor.
        join: converts the toolkit's tensors to asr's tensor.
        part: converts asr's tensor to the toolkit's tensors.
    """

    shapes: Callable[[torch.Size], Sequence[tuple[int, ...]]]
    join: Callable[..., Tensor]
    part: Callable[[Tensor], Sequence[Tensor]]


class Row(NamedTuple):
    """The name of one of asr's tensors, the names of the other toolkit's tensors, and the conversion."""

    ours: str
    theirs: tuple[str, ...]
    layout: Layout


class Account(NamedTuple):
    """Numbers of the other toolkit's tensors, by use.

    Args:
        taken: tensors that were converted.
        folded: biases that were added to another bias, and weights that were multiplied by `Weights.scale`.
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
SUM = Layout(lambda shape: 2 * [shape], lambda x, y: x + y, lambda x: [x, torch.zeros_like(x)])


def outputs(blank: int | None, layout: Layout = SAME) -> Layout:
    """Return a layout that moves row `blank` (None: the last row) of the toolkit's tensor to row 0 of asr's tensor."""

    def first(x: Tensor) -> Tensor:
        number = len(x) - 1 if blank is None else blank
        return torch.cat([x[number : number + 1], x[:number], x[number + 1 :]])

    def back(x: Tensor) -> Tensor:
        number = len(x) - 1 if blank is None else blank
        return torch.cat([x[1 : number + 1], x[:1], x[number + 1 :]])

    return Layout(layout.shapes, lambda x: first(layout.join(x)), lambda x: layout.part(back(x)))


def row(ours: str, names: Names) -> Row:
    """Return the counterparts of one of asr's tensors, and the conversion.

    Raises:
        InputError: the toolkit has no counterpart of the tensor.
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
    must = f"{ours} must have a counterpart in {names.toolkit}'s Conformer-CTC"
    raise InputError(f"{must}; there is none.")


def take(
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, torch.Size],
    names: Names,
    features: SlaneyFbank,
    scale: float,
) -> tuple[dict[str, Tensor], Account]:
    """Convert the other toolkit's tensors to asr's; every tensor must be used, or be known to be unneeded.

    Args:
        tensors: tensors of the other toolkit, by name.
        shapes: shapes of asr's tensors, by name.
        names: the other toolkit's names.
        features: front-end that computes some of the tensors for comparison.
        scale: factor by which the other toolkit multiplies the subsampling's output.

    Raises:
        InputError: a tensor is missing, unused or not finite, has a wrong shape, or differs from the computed tensor.
    """
    left = dict(tensors)
    ours: dict[str, Tensor] = {}
    folded = 0
    for name, shape in shapes.items():
        _, theirs, layout = row(name, names)
        folded += layout is SUM
        parts = [_take(left, part, size) for part, size in zip(theirs, layout.shapes(shape), strict=True)]
        ours[name] = layout.join(*parts).clone(
            memory_format=torch.contiguous_format
        )  # cloned, because the other toolkit's layers may share a tensor
        if scale != 1 and name.startswith(FOLDED):
            ours[name] = (ours[name].double() * scale).float()
            folded += 1
    taken = len(tensors) - len(left) - folded
    compared = [_compare(left, name, compute(features)) for name, compute in names.computed.items() if name in left]
    unneeded = [name for name in left if name.endswith(COUNTER)]
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
        raise InputError(f"{name} must equal the tensor that features=slaney_fbank computes; it differs by {off:.2g}.")
    return off


def give(weights: Mapping[str, Tensor], names: Names, features: SlaneyFbank) -> dict[str, Tensor]:
    """Convert asr's tensors to the toolkit's, and add tensors that only the toolkit stores.

    The added tensors are the counters of batch norms, and tensors that asr computes from the features' settings, such
    as the mel filters.

    Raises:
        InputError: the toolkit has no counterpart of a tensor.
    """
    theirs = {name: compute(features).contiguous() for name, compute in names.computed.items()}
    for ours, weight in weights.items():
        _, their_names, layout = row(ours, names)
        parts = layout.part(weight.to(torch.float32))
        theirs |= {name: part.contiguous() for name, part in zip(their_names, parts, strict=True)}
        if BATCH_NORM.fullmatch(ours):
            theirs[their_names[0].rpartition(".")[0] + COUNTER] = torch.tensor(0)
    return theirs
