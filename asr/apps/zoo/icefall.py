"""Zipformers of icefall with CTC or a transducer: a checkpoint of torch, and the SentencePiece model of its recipe."""

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.apps.convert.account import SAME, SUM, Counterparts, Layout, Row, give
from asr.apps.convert.conformer import CTC, HEAD, TRANSDUCER
from asr.apps.convert.foreign import CTC_HEAD, Choices, HeadConfig, ModelParts, Weights
from asr.apps.convert.kinds import ICEFALL, kind_of
from asr.apps.convert.section import check_parts, has_encoder
from asr.apps.convert.tensors import load_entry, load_tensors
from asr.apps.zoo.icefall_tokens import order_of, read_tokens, written_tokens
from asr.base.settings.conf import default_settings
from asr.components.encoder.zipformer import OUTPUT_STRIDE
from asr.components.tokenizer.sentencepiece import FILE
from asr.core.build import PROMPT
from asr.core.checkpoint.bundle import Bundle
from asr.core.checkpoint.load import bundle_recognizer
from asr.errors import InputError, shown

MODEL = "icefall's Zipformer"
CHECKPOINT, ENTRY = "pretrained.pt", "model"
AVERAGE, COUNTERS = "model_avg", ("batch_idx_train", "average_period")  # entries of the checkpoint of an epoch
CHECKPOINTS = ("pretrained*.pt", "epoch-[0-9]*.pt")
PLACES = ("", "exp/")  # folders of a model that may hold its checkpoints
NUM_MEL_BINS, POSITION_HEAD_DIM = 80, 4  # of all published recipes; no tensor has these numbers
FEATURES = "mirrored_fbank"  # file of settings
INITIAL = 0.5  # value of a parameter that icefall's layers have and do not use, so that no training changes it
DROPOUT = 0.1  # in the recipes, from step 20000 on

MAX_SYMBOLS = 1  # tokens in a frame, in icefall's searches
# A head, and losses of the training, that recognition does not need.
UNUSED = {
    "simple_am_proj.": "the simple loss of a transducer",
    "simple_lm_proj.": "the simple loss of a transducer",
    "attention_decoder.": "an attention decoder",
}
# Patterns of tensors of earlier kinds of models.
EARLIER = {
    r"encoder\.emformer_layers\.": "a ConvEmformer",
    r"encoder\.encoder\.layers\.0\.lstm\.": "an LSTM encoder",
    r"encoder\.encoders\.0\.(encoder\.)?layers\.0\.self_attn\.": "the first Zipformer (pruned_transducer_stateless7)",
    r"encoder\.encoder\.layers\.": "a Conformer",
    r"encoder\.encoder_layers\.": "a Conformer",
}
CAUSAL = "conv_module1.depthwise_conv.causal_conv.weight"  # a layer of a Zipformer for streaming has this tensor
WHOLE, STREAMING = "zipformer", "zipformer_streaming"
CHUNKS = ("chunk_frames", "left_frames", "training_chunk_frames", "training_left_frames")
# Ours and theirs: patterns of our names, and the replacements.
NAMES = (
    (r"^encoder\.subsampling\.conv1\.", "encoder_embed.conv.0."),
    (r"^encoder\.subsampling\.conv2\.", "encoder_embed.conv.4."),
    (r"^encoder\.subsampling\.conv3\.", "encoder_embed.conv.7."),
    (r"^encoder\.subsampling\.layer\.depthwise", "encoder_embed.convnext.depthwise_conv"),
    (r"^encoder\.subsampling\.layer\.pointwise(\d)", r"encoder_embed.convnext.pointwise_conv\1"),
    (r"^encoder\.subsampling\.linear\.", "encoder_embed.out."),
    (r"^encoder\.subsampling\.norm\.", "encoder_embed.out_norm."),
    (r"^encoder\.pooling\.weight", "encoder.downsample_output.bias"),
    (r"^encoder\.stacks\.(\d+)\.pooling\.weight", r"encoder.encoders.\1.downsample.bias"),
    (r"^encoder\.stacks\.(\d+)\.bypass\.share", r"encoder.encoders.\1.out_combiner.bypass_scale"),
    (r"\.weights\.projection\.", ".self_attn_weights.in_proj."),
    (r"\.weights\.position\.", ".self_attn_weights.linear_pos."),
    (r"\.attention(\d)\.value\.", r".self_attn\1.in_proj."),
    (r"\.attention(\d)\.output\.", r".self_attn\1.out_proj."),
    (r"\.(feed_forward\d)\.linear1\.", r".\1.in_proj."),
    (r"\.(feed_forward\d)\.linear2\.", r".\1.out_proj."),
    (r"\.nonlinear_attention\.projection\.", ".nonlin_attention.in_proj."),
    (r"\.nonlinear_attention\.output\.", ".nonlin_attention.out_proj."),
    (r"\.convolution(\d)\.pointwise1\.", r".conv_module\1.in_proj."),
    (r"\.convolution(\d)\.pointwise2\.", r".conv_module\1.out_proj."),
    (r"\.convolution(\d)\.depthwise\.", r".conv_module\1.depthwise_conv."),
    (r"\.convolution(\d)\.causal\.", r".conv_module\1.depthwise_conv.causal_conv."),
    (r"\.convolution(\d)\.within\.", r".conv_module\1.depthwise_conv.chunkwise_conv."),
    (r"\.convolution(\d)\.scales", r".conv_module\1.depthwise_conv.chunkwise_conv_scale"),
    (r"\.bypass_middle\.share", ".bypass_mid.bypass_scale"),
    (r"\.bypass\.share", ".bypass.bypass_scale"),
    (rf"^({HEAD}|head\.ctc\.linear)\.", "ctc_output.1."),
    (r"^head\.predictor\.convolve\.0\.", "decoder.conv."),
    (r"^head\.predictor\.", "decoder."),
    (r"^head\.joiner\.of_frames\.", "joiner.encoder_proj."),
    (r"^head\.joiner\.of_tokens\.", "joiner.decoder_proj."),
    (r"^head\.joiner\.output\.", "joiner.output_linear."),
)
OF_TOKENS = re.compile(
    r"^(ctc_output\.1|decoder\.embedding|joiner\.output_linear)\."
)  # tensors with a row for each token
BIASES = ("joiner.encoder_proj.bias", "joiner.decoder_proj.bias")  # one in asr: their sum
BLOCK = re.compile(r"^encoder\.stacks\.(\d+)\.blocks\.(\d+)\.")
POINTWISE = Layout(lambda shape: [(*shape, 1, 1)], lambda x: x[:, :, 0, 0], lambda x: [x[:, :, None, None]])
SCALAR = Layout(lambda shape: [()], lambda x: x[None], lambda x: [x[0]])
PARTS: dict[str, tuple[object, ...]] = {  # parts of asr that the model has
    PROMPT: (),
    "encoder": (WHOLE, STREAMING),
    "encoder.block": ("zipformer_block", "zipformer_streaming_block"),
    "encoder.subsampling": ("convnext",),
    "features": ("fbank",),
    "features.normalize": ("none",),
    "head": (CTC, TRANSDUCER),
    "head.durations": ([],),
    "head.joint_activation": ("tanh",),
    "head.predictor": ("stateless_conv",),
    "head.predictor.group_dim": (4,),
}
CURES = {"head.predictor": " Train with head/predictor=stateless_conv."}


def is_checkpoint(path: Path) -> bool:
    """Whether a path is a checkpoint of icefall by its name, or a folder with one that is of no other kind."""
    if path.is_dir():
        kind = kind_of(path)  # a folder with an exported program may have the checkpoint, too
        return (kind is None or kind.name == ICEFALL) and bool(_checkpoints(path))
    return path.is_file() and any(fnmatchcase(path.name, name) for name in CHECKPOINTS)


def _checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, the one to read first: pretrained.pt, or the last epoch."""
    files = [file for place in PLACES for name in CHECKPOINTS for file in (folder / place).glob(name)]

    def order(file: Path) -> tuple[bool, bool, int, str]:
        number = file.stem.rpartition("-")[2]
        return file.name != CHECKPOINT, not number.isdigit(), -int(number) if number.isdigit() else 0, file.name

    return sorted(files, key=order)


def read(path: Path, choices: Choices) -> ModelParts:
    """Convert a checkpoint."""
    if choices.texts is not None or choices.pad_mode != "zeros":
        raise InputError(f"--texts and --pad-mode have no use for {MODEL}. Leave them out.")
    files = [path] if path.is_file() else _checkpoints(path)
    file = files[0] if choices.average is None else next(filter(_is_epoch, files), files[0])
    tensors, sha256 = _loaded(file) if choices.average is None else _average(file, choices.average)
    _check_kind(tensors)
    encoder = encoder_config(tensors)
    head = head_config(tensors)
    output = "joiner.output_linear.bias" if is_transducer(tensors) else "ctc_output.1.bias"
    tokens = read_tokens(file, len(tensors[output]), choices.tokenizer)
    features = default_settings("features", FEATURES)
    unused = dict.fromkeys(kind for begin, kind in UNUSED.items() if any(name.startswith(begin) for name in tensors))
    notes = [f"left out: {kind}." for kind in unused]
    notes.append(
        f"{NUM_MEL_BINS} mel bins and {POSITION_HEAD_DIM} values for a distance in each head are assumed, as in all "
        "published recipes; the other sizes are those of the tensors."
    )
    if encoder["name"] == STREAMING:
        chunk, left = (OUTPUT_STRIDE * encoder[key] for key in CHUNKS[:2])
        notes.append(
            f"a chunk of {chunk} and a left context of {left} frames of 20 ms are assumed, as icefall's export scripts "
            f"show (--chunk-size {chunk} --left-context-frames {left}); --latency chooses another chunk."
        )
    changed = [name for name in _unused_shares(encoder) if name in tensors and bool((tensors[name] != INITIAL).any())]
    if changed:
        notes.append(f"{changed[0]} ({len(changed)} such) has no use in icefall; back in icefall it is {INITIAL}.")
    weights = Weights(tensors, sha256, counterparts(encoder, tokens.order, tensors))
    return ModelParts(tokens.vocabulary, features, encoder, weights, head, notes=notes, writer="icefall")


def _loaded(file: Path) -> tuple[dict[str, Tensor], str]:
    """Return the tensors of a checkpoint, and the SHA-256 of its file."""
    content = file.read_bytes()
    return load_tensors(content, file.name, ENTRY), hashlib.sha256(content).hexdigest()


def _is_epoch(file: Path) -> bool:
    """Whether a file is the checkpoint of an epoch by its name, epoch-N.pt."""
    return re.fullmatch(r"epoch-\d+\.pt", file.name, re.ASCII) is not None


def _average(file: Path, num_epochs: int) -> tuple[dict[str, Tensor], str]:
    """Return the average of the weights in the last epochs before a checkpoint, and the SHA-256 of the files.

    Each checkpoint has the average since the beginning of the training, over its number of batches; two of them give
    the average between them, as icefall's `--avg N --use-averaged-model 1`.

    Args:
        file: checkpoint of an epoch.
        num_epochs: number of epochs.
    """
    if not _is_epoch(file):
        raise InputError(f"--average needs the checkpoint of an epoch, epoch-N.pt; got {file.name}.")
    last = int(file.stem.rpartition("-")[2])
    if not 1 <= num_epochs <= last:
        raise InputError(f"--average must be from 1 to {last}, the epochs of {file.name}; got {num_epochs}.")
    first = file.with_name(f"epoch-{last - num_epochs}.pt")
    files = [file] if last == num_epochs else [file, first]
    if not files[-1].is_file():
        must = f"--average {num_epochs} needs {first.name} beside {file.name}"
        raise InputError(f"{must}; it is missing. Give another number of epochs.")
    contents = [path.read_bytes() for path in files]
    entries = [load_entry(content, path.name, AVERAGE, COUNTERS) for content, path in zip(contents, files, strict=True)]
    sha256 = hashlib.sha256(b"".join(contents)).hexdigest()
    tensors = entries[0].tensors
    if len(entries) == 1:
        return tensors, sha256
    (end, period), (begin, _) = (entry.numbers for entry in entries)
    end, begin = end // period * period, begin // period * period  # batches in the averages
    before = entries[1].tensors
    shapes = [{name: tensor.shape for name, tensor in entry.tensors.items()} for entry in entries]
    if end <= begin or shapes[0] != shapes[1]:
        must = f"{first.name} must be an earlier checkpoint of the training of {file.name}"
        raise InputError(f"{must}, with the same tensors; it is not.")

    def between(tensor: Tensor, earlier: Tensor) -> Tensor:
        return ((end * tensor.double() - begin * earlier.double()) / (end - begin)).float()

    return {name: between(tensor, before[name]) for name, tensor in tensors.items()}, sha256


def _check_kind(tensors: Mapping[str, Tensor]) -> None:
    """Check that the tensors are those of a Zipformer with a head."""
    first = [name for name in tensors if re.match(r"encoder\.encoders\.0\.(encoder\.)?layers\.0\.", name)]
    if not any("self_attn_weights.in_proj" in name for name in first):
        earlier = (kind for pattern, kind in EARLIER.items() if any(re.match(pattern, name) for name in tensors))
        kind = next(earlier, "another model")
        raise InputError(f"the checkpoint must be of a Zipformer of icefall (zipformer/); this is {kind}.")
    if not is_transducer(tensors) and "ctc_output.1.bias" not in tensors:
        raise InputError("the Zipformer must have a joiner or a CTC head, ctc_output; it has neither.")


def is_transducer(tensors: Mapping[str, Tensor]) -> bool:
    """Whether a model has a transducer, with or without a CTC head."""
    return "joiner.output_linear.bias" in tensors


def head_config(tensors: Mapping[str, Tensor]) -> HeadConfig:
    """Return the config of asr's head, from the shapes of icefall's tensors."""
    if not is_transducer(tensors):
        return CTC_HEAD
    settings = default_settings("head", TRANSDUCER, {"predictor": "stateless_conv"})
    convolution = "decoder.conv.weight"  # (P, channels of a group, tokens); a context of one token has none
    predictor = settings["predictor"] | {"dim": _size(tensors, "decoder.embedding.weight", 1), "num_tokens": 1}
    if convolution in tensors:
        predictor |= {"group_dim": _size(tensors, convolution, 1), "num_tokens": _size(tensors, convolution, 2)}
    head = settings | {
        "joint_dim": _size(tensors, "joiner.output_linear.weight", 1),
        "joint_activation": "tanh",
        "dropout": 0.0,
        "ctc_weight": settings["ctc_weight"] if "ctc_output.1.bias" in tensors else 0.0,
        "predictor": predictor,
    }
    return HeadConfig(head, default_settings("decode", "transducer_greedy") | {"max_symbols": MAX_SYMBOLS})


def _size(tensors: Mapping[str, Tensor], name: str, axis: int) -> int:
    if name not in tensors or tensors[name].dim() <= axis:
        raise InputError(f"the checkpoint must have {name}, with {axis + 1} dimensions; it has not.")
    return int(tensors[name].shape[axis])


def encoder_config(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the config of asr's encoder, from the shapes of icefall's tensors."""
    size = partial(_size, tensors)
    stacks = 1 + max(int(name.split(".")[2]) for name in tensors if re.match(r"encoder\.encoders\.\d+\.", name))
    sizes: dict[str, list[int]] = {key: [] for key in ("dims", "layers", "strides", "heads", "kernel_sizes")}
    sizes["feed_forward_dims"] = []
    is_causal = any(name.endswith(CAUSAL) for name in tensors)
    of_kernel = "chunkwise_conv." if is_causal else ""
    for stack in range(stacks):
        begin = f"encoder.encoders.{stack}."
        stride = len(tensors.get(f"{begin}downsample.bias", [0]))
        layers = begin + ("encoder.layers." if stride > 1 else "layers.")
        numbers = {name.removeprefix(layers).split(".")[0] for name in tensors if name.startswith(layers)}
        sizes["dims"].append(size(f"{layers}0.norm.bias", 0))
        sizes["layers"].append(len(numbers))
        sizes["strides"].append(stride)
        sizes["heads"].append(size(f"{layers}0.self_attn_weights.linear_pos.weight", 0) // POSITION_HEAD_DIM)
        sizes["kernel_sizes"].append(size(f"{layers}0.conv_module1.depthwise_conv.{of_kernel}weight", 2))
        sizes["feed_forward_dims"].append(size(f"{layers}0.feed_forward2.in_proj.weight", 0))
    layer = "encoder.encoders.0." + ("layers.0." if sizes["strides"][0] == 1 else "encoder.layers.0.")
    heads = max(1, sizes["heads"][0])
    queries = size(f"{layer}self_attn_weights.in_proj.weight", 0) // heads - POSITION_HEAD_DIM
    return {
        "name": STREAMING if is_causal else WHOLE,
        **sizes,
        **_chunks(is_causal),
        "subsampling": {
            "name": "convnext",
            "channels": [size(f"encoder_embed.conv.{number}.weight", 0) for number in (0, 4, 7)],
            "dropout": DROPOUT,
        },
        "block": {
            "name": "zipformer_streaming_block" if is_causal else "zipformer_block",
            "query_head_dim": queries // 2,
            "value_head_dim": size(f"{layer}self_attn1.in_proj.weight", 0) // heads,
            "position_head_dim": POSITION_HEAD_DIM,
            "position_dim": size(f"{layer}self_attn_weights.linear_pos.weight", 1),
            "dropout": DROPOUT,
        },
    }


def _chunks(is_causal: bool) -> dict[str, Any]:
    """Return the settings of a streaming encoder that no tensor has: those of the recipes."""
    recipe = default_settings("encoder", f"{STREAMING}_s")
    return {key: recipe[key] for key in CHUNKS if is_causal}


def counterparts(encoder: Mapping[str, Any], order: Sequence[int], tensors: Mapping[str, Tensor]) -> Counterparts:
    """Return the tensors of a model.

    Args:
        encoder: config of asr's encoder.
        order: number of icefall's output for each of our tokens.
        tensors: icefall's tensors, some of which are unneeded.
    """
    unused = tuple(UNUSED)
    unneeded = {name for name in tensors if name.startswith(unused)} | set(_unused_shares(encoder))

    def row(ours: str) -> Row:
        name, layout = theirs(ours, encoder["strides"]), SAME
        if name in BIASES:
            return Row(ours, BIASES, SUM)
        if re.search(r"\.layer\.pointwise\d\.weight", ours):
            layout = POINTWISE
        elif ours.endswith(".log_scale"):
            layout = SCALAR
        elif OF_TOKENS.match(name):
            layout = reordered(order)
        return Row(ours, (name,), layout)

    return Counterparts(row, unneeded=unneeded)


def _unused_shares(encoder: Mapping[str, Any]) -> dict[str, int]:
    """Return a parameter of each layer that icefall's network has and does not use, and its size."""
    return {
        theirs(f"encoder.stacks.{stack}.blocks.{number}.bypass_scale", encoder["strides"]): dim
        for stack, (dim, layers) in enumerate(zip(encoder["dims"], encoder["layers"], strict=True))
        for number in range(layers)
    }


def theirs(ours: str, strides: Sequence[int]) -> str:
    """Return icefall's name of a tensor; a stack with a stride has its layers in a module of its own."""

    def layer(match: re.Match[str]) -> str:
        inner = "encoder." if strides[int(match[1])] > 1 else ""
        return f"encoder.encoders.{match[1]}.{inner}layers.{match[2]}."

    name = BLOCK.sub(layer, ours)
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def reordered(order: Sequence[int]) -> Layout:
    """Return the layout of a tensor with a row for each token; `order` has icefall's numbers of our tokens."""
    index = torch.tensor(order)
    return Layout(lambda shape: [shape], lambda x: x[index], lambda x: [x[index.argsort()]])


fits = has_encoder(WHOLE, STREAMING)


def write(bundle: Bundle, path: Path) -> dict[str, bytes]:
    """Convert a bundle to icefall's files, by name."""
    config, encoder = bundle.config, bundle.config["encoder"]
    features = default_settings("features", FEATURES)
    lhotses = {f"features.{key}": (features[key],) for key in ("snip_edges", "high_hertz", "full_scale")}
    check_parts(config, "icefall", PARTS | lhotses, CURES)
    if encoder["block"]["position_head_dim"] != POSITION_HEAD_DIM:
        must = f"encoder.block.position_head_dim must be {POSITION_HEAD_DIM} for conversion to icefall"
        raise InputError(f"{must}; got {encoder['block']['position_head_dim']}.")
    model = bundle_recognizer(bundle, path).model
    if config["tokenizer"]["name"] != "sentencepiece":
        must = "tokenizer must be sentencepiece for conversion to icefall"
        raise InputError(f"{must}; got {shown(config['tokenizer']['name'])}.")
    order = order_of(bundle.files[FILE])
    tensors = give(model.state_dict(), counterparts(encoder, order, {}))
    tensors |= {name: torch.full((dim,), INITIAL) for name, dim in _unused_shares(encoder).items()}
    saved = io.BytesIO()
    torch.save({ENTRY: tensors}, saved)
    return {CHECKPOINT: saved.getvalue(), **written_tokens(bundle.files[FILE], order)}
