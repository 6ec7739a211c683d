"""The tensors of NVIDIA NeMo's Conformer-CTC and those of ours: which is which, in one table for both directions."""

import io
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from asr.checkpoint.bundle import one_line
from asr.errors import InputError, shown
from asr.features.slaney_fbank import SlaneyFbank
from asr.interfaces import BLANK_ID
from asr.system.learnt import MAX_BYTES

WINDOW, FILTERBANK = "preprocessor.featurizer.window", "preprocessor.featurizer.fb"
COUNTER = ".num_batches_tracked"  # of a batch norm: only a momentum that is null would need it
COMPARED = 1e-5  # by how much what is computed again may differ, beside the rounding of its type
ZIP = b"PK"


class Layout(NamedTuple):
    """How a tensor of ours lies in NeMo's.

    Args:
        shapes: of theirs, given the shape of ours.
        join: theirs to ours.
        part: ours to theirs.
    """

    shapes: Callable[[torch.Size], Sequence[tuple[int, ...]]]
    join: Callable[..., Tensor]
    part: Callable[[Tensor], Sequence[Tensor]]


class Row(NamedTuple):
    """One of our tensors, the names of those of NeMo's that it is made of, and how."""

    ours: str
    theirs: tuple[str, ...]
    layout: Layout


class Account(NamedTuple):
    """What became of an archive's tensors: how many of each."""

    taken: int
    folded: int
    compared: int
    not_needed: int


FRONT_END = {
    "encoder.subsampling.conv1": "encoder.pre_encode.conv.0",
    "encoder.subsampling.conv2": "encoder.pre_encode.conv.2",
    "encoder.subsampling.linear": "encoder.pre_encode.out",
}
BLOCK = {  # of a block, our module: NeMo's
    "norm_feed_forward1": "norm_feed_forward1",
    "feed_forward1.linear1": "feed_forward1.linear1",
    "feed_forward1.linear2": "feed_forward1.linear2",
    "norm_attention": "norm_self_att",
    "attention.position": "self_attn.linear_pos",
    "attention.output": "self_attn.linear_out",
    "norm_convolution": "norm_conv",
    "convolution.pointwise1": "conv.pointwise_conv1",
    "convolution.depthwise": "conv.depthwise_conv",
    "convolution.norm": "conv.batch_norm",
    "convolution.pointwise2": "conv.pointwise_conv2",
    "norm_feed_forward2": "norm_feed_forward2",
    "feed_forward2.linear1": "feed_forward2.linear1",
    "feed_forward2.linear2": "feed_forward2.linear2",
    "norm_output": "norm_out",
}
POINTWISE = ("convolution.pointwise1", "convolution.pointwise2")  # NeMo's are convolutions over one frame
FOLDED = "encoder.subsampling.linear."
BATCH_NORM = re.compile(r"encoder\.blocks\.\d+\.convolution\.norm\.running_mean")  # one of each


def _blank_first(x: Tensor) -> Tensor:
    return torch.cat([x[-1:], x[:-1]])


def _blank_last(x: Tensor) -> Tensor:
    return torch.cat([x[BLANK_ID + 1 :], x[: BLANK_ID + 1]])


SAME = Layout(lambda shape: [shape], lambda x: x, lambda x: [x])
ONE_FRAME = Layout(lambda shape: [(*shape, 1)], lambda x: x[:, :, 0], lambda x: [x[:, :, None]])
HEADS = Layout(lambda shape: [(shape[0], shape[2])], lambda x: x[:, None], lambda x: [x[:, 0]])
THREE = Layout(
    lambda shape: 3 * [(shape[0] // 3, *shape[1:])], lambda *parts: torch.cat(parts), lambda x: list(x.chunk(3))
)
OUTPUTS = Layout(SAME.shapes, _blank_first, lambda x: [_blank_last(x)])
OUTPUT_WEIGHTS = Layout(
    ONE_FRAME.shapes, lambda x: _blank_first(ONE_FRAME.join(x)), lambda x: ONE_FRAME.part(_blank_last(x))
)


def row(ours: str, head: str) -> Row:
    """Find what of NeMo's one of our tensors is made of.

    Args:
        ours: its name.
        head: what the names of NeMo's head begin with.

    Raises:
        InputError: NeMo has none like it.
    """
    module, _, kind = ours.rpartition(".")
    if module == "head.linear":
        return Row(ours, (f"{head}.decoder_layers.0.{kind}",), OUTPUT_WEIGHTS if kind == "weight" else OUTPUTS)
    if module in FRONT_END:
        return Row(ours, (f"{FRONT_END[module]}.{kind}",), SAME)
    block = re.fullmatch(r"encoder\.blocks\.(\d+)\.(.+)", module)
    layer, part = (f"encoder.layers.{block[1]}", block[2]) if block else ("", "")
    if part == "attention.qkv":
        return Row(ours, tuple(f"{layer}.self_attn.linear_{which}.{kind}" for which in "qkv"), THREE)
    if part == "attention" and kind in ("u", "v"):
        return Row(ours, (f"{layer}.self_attn.pos_bias_{kind}",), HEADS)
    if part in BLOCK:
        is_convolution = part in POINTWISE and kind == "weight"
        return Row(ours, (f"{layer}.{BLOCK[part]}.{kind}",), ONE_FRAME if is_convolution else SAME)
    raise InputError(f"{ours} must be a tensor that NeMo's Conformer-CTC has, too; it has none like it.")


def take(
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, torch.Size],
    features: SlaneyFbank,
    head: str,
    others: tuple[str, ...],
    scale: float,
) -> tuple[dict[str, Tensor], Account]:
    """Make our tensors of NeMo's, of which each is accounted for.

    Args:
        tensors: NeMo's.
        shapes: of ours, by name.
        features: whose window and filterbank are compared.
        head: what the names of NeMo's head begin with.
        others: what the names of another head's begin with, which are left.
        scale: that NeMo multiplies the subsampling's output by.

    Raises:
        InputError: naming a tensor that is missing, left over, of another shape, not finite, or not the features'.
    """
    left = dict(tensors)
    ours: dict[str, Tensor] = {}
    folded = 0
    for name, shape in shapes.items():
        _, theirs, layout = row(name, head)
        parts = [_take(left, part, size) for part, size in zip(theirs, layout.shapes(shape), strict=True)]
        ours[name] = layout.join(*parts).clone(memory_format=torch.contiguous_format)  # NeMo's layers may share one
        if scale != 1 and name.startswith(FOLDED):
            ours[name] = (ours[name].double() * scale).float()
            folded += 1
    taken = len(tensors) - len(left) - folded
    computed = {WINDOW: features.hann, FILTERBANK: features.mel.T[None]}
    compared = [_compare(left, name, tensor) for name, tensor in computed.items() if name in left]
    unneeded = [name for name in left if name.endswith(COUNTER) or name.startswith(others)]
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


def give(weights: Mapping[str, Tensor], features: SlaneyFbank) -> dict[str, Tensor]:
    """Make NeMo's tensors of ours, with those that NeMo computes, or counts, itself.

    Raises:
        InputError: naming one of ours that NeMo has not.
    """
    theirs = {WINDOW: features.hann, FILTERBANK: features.mel.T[None].contiguous()}
    for ours, weight in weights.items():
        _, names, layout = row(ours, "decoder")
        parts = layout.part(weight.to(torch.float32))
        theirs |= {name: part.contiguous() for name, part in zip(names, parts, strict=True)}
        if BATCH_NORM.fullmatch(ours):
            theirs[names[0].rpartition(".")[0] + COUNTER] = torch.tensor(0)
    return theirs


def load_tensors(content: bytes, name: str) -> dict[str, Tensor]:
    """Read tensors by name: of a stranger's file, which can neither run code nor take much more memory than it has.

    Args:
        content: of the file, safetensors or what `torch.save` wrote.
        name: of the file, for errors.

    Raises:
        InputError: it holds anything else.
    """
    if not content.startswith(ZIP):
        return _load_safetensors(content, name)
    _check_zip(content, name)
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever torch stumbles over, nearly any kind there is, the file is at fault
        reason = re.sub(r".*?WeightsUnpickler error: ", "", one_line(error))
        raise InputError(f"{name} must hold tensors alone, and nothing that could run code: {reason}") from None
    tensors = dict(_tensors(state, name))
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if size > 2 * len(content):  # the same numbers, again and again
        raise InputError(f"{name} must hold as many numbers as its tensors have; they have {size:,} bytes.")
    return tensors


def _load_safetensors(content: bytes, name: str) -> dict[str, Tensor]:
    try:
        return dict(_tensors(load(content), name))
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        must = f"{name} must be what torch.save wrote since torch 1.6, or safetensors"
        raise InputError(f"{must}; it is damaged, or none: {one_line(error)}.") from None


def _check_zip(content: bytes, name: str) -> None:
    """Check that a zip file, which torch unpacks, is not larger than it looks."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        raise InputError(f"{name} must be what torch.save wrote; it is damaged: {one_line(error)}.") from None
    is_packed = any(record.compress_type != zipfile.ZIP_STORED for record in records)
    if is_packed or sum(record.file_size for record in records) > len(content):
        raise InputError(f"{name} must be what torch.save wrote, which packs nothing; this is packed.")
    if any(record.filename.endswith("data.pkl") and record.file_size > MAX_BYTES for record in records):
        raise InputError(f"{name} must hold tensors by name; it holds more than {MAX_BYTES:,} bytes beside them.")


def _tensors(state: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if not isinstance(state, Mapping) or not state:
        raise InputError(f"{name} must hold tensors by name; got {shown(type(state).__name__)}.")
    for key, tensor in state.items():
        is_plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_quantized
        if not isinstance(key, str) or not is_plain or not (tensor.is_floating_point() or key.endswith(COUNTER)):
            raise InputError(f"{name} must hold tensors of floating-point numbers by name; {shown(key)} is none.")
        yield key, tensor.detach()
