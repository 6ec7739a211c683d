"""Zipformers of icefall with CTC or a transducer: a checkpoint of torch, and the SentencePiece model of its recipe."""

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asr.apps.convert.account import SAME, SUM, Counterparts, Layout, Row, give
from asr.apps.convert.conformer import CTC, HEAD, TRANSDUCER
from asr.apps.convert.foreign import CTC_HEAD, Choices, HeadConfig, ModelParts, Vocabulary, Weights
from asr.apps.convert.kinds import ICEFALL, kind_of
from asr.apps.convert.section import check_parts
from asr.apps.convert.subword_model import algorithm, charsmap, model_of, processor_of, with_blank
from asr.apps.convert.tensors import load_tensors
from asr.base.settings.conf import default_settings
from asr.base.system.learnt import MAX_BYTES
from asr.base.text.hidden_pieces import hidden_files
from asr.components.tokenizer.sentencepiece import FILE, UNKNOWN_ID
from asr.components.tokenizer.subword_pieces import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, SubwordPiece
from asr.core.build import PROMPT
from asr.core.checkpoint.bundle import Bundle
from asr.core.checkpoint.load import bundle_recognizer
from asr.errors import InputError, shown

MODEL = "icefall's Zipformer"
CHECKPOINT, ENTRY, SUBWORDS, TOKENS = "pretrained.pt", "model", "bpe.model", "tokens.txt"
CHECKPOINTS = ("pretrained*.pt", "epoch-[0-9]*.pt")
PLACES = ("", "exp/")  # folders of a model that may hold its checkpoints
SUBWORD_PLACES = ("", "../", "data/lang_bpe_*/", "../data/lang_bpe_*/")  # relative to the checkpoint
NUM_MEL_BINS, POSITION_HEAD_DIM = 80, 4  # of all published recipes; no tensor has these numbers
FEATURES = "mirrored_fbank"  # file of settings
BLANK_NAME, BOUNDARY_NAME = "<blk>", "<sos/eos>"
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
STREAMING = "conv_module1.depthwise_conv.causal_conv.weight"
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
    "encoder": ("zipformer",),
    "encoder.block": ("zipformer_block",),
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


class Tokens(NamedTuple):
    """The pieces of a head.

    Args:
        vocabulary: the tokenizer.
        order: number of icefall's output for each of our tokens.
    """

    vocabulary: Vocabulary
    order: Sequence[int]


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
    file = path if path.is_file() else _checkpoints(path)[0]
    content = file.read_bytes()
    tensors = load_tensors(content, file.name, ENTRY)
    _check_kind(tensors)
    encoder = encoder_config(tensors)
    head = head_config(tensors)
    tokens = _tokens(file, len(tensors["joiner.output_linear.bias" if is_transducer(tensors) else "ctc_output.1.bias"]))
    features = default_settings("features", FEATURES)
    unused = dict.fromkeys(kind for begin, kind in UNUSED.items() if any(name.startswith(begin) for name in tensors))
    notes = [f"left out: {kind}." for kind in unused]
    notes.append(
        f"{NUM_MEL_BINS} mel bins and {POSITION_HEAD_DIM} values for a distance in each head are assumed, as in all "
        "published recipes; the other sizes are those of the tensors."
    )
    weights = Weights(tensors, hashlib.sha256(content).hexdigest(), counterparts(encoder, tokens.order, tensors))
    return ModelParts(tokens.vocabulary, features, encoder, weights, head, notes=notes, writer="icefall")


def _check_kind(tensors: Mapping[str, Tensor]) -> None:
    """Check that the tensors are those of a Zipformer with a head, for whole recordings."""
    first = [name for name in tensors if re.match(r"encoder\.encoders\.0\.(encoder\.)?layers\.0\.", name)]
    if not any("self_attn_weights.in_proj" in name for name in first):
        earlier = (kind for pattern, kind in EARLIER.items() if any(re.match(pattern, name) for name in tensors))
        kind = next(earlier, "another model")
        raise InputError(f"the checkpoint must be of a Zipformer of icefall (zipformer/); this is {kind}.")
    if any(name.endswith(STREAMING) for name in first):
        raise InputError("the Zipformer must be one for whole recordings; this is one for streaming (causal: true).")
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
    for stack in range(stacks):
        begin = f"encoder.encoders.{stack}."
        stride = len(tensors.get(f"{begin}downsample.bias", [0]))
        layers = begin + ("encoder.layers." if stride > 1 else "layers.")
        numbers = {name.removeprefix(layers).split(".")[0] for name in tensors if name.startswith(layers)}
        sizes["dims"].append(size(f"{layers}0.norm.bias", 0))
        sizes["layers"].append(len(numbers))
        sizes["strides"].append(stride)
        sizes["heads"].append(size(f"{layers}0.self_attn_weights.linear_pos.weight", 0) // POSITION_HEAD_DIM)
        sizes["kernel_sizes"].append(size(f"{layers}0.conv_module1.depthwise_conv.weight", 2))
        sizes["feed_forward_dims"].append(size(f"{layers}0.feed_forward2.in_proj.weight", 0))
    layer = "encoder.encoders.0." + ("layers.0." if sizes["strides"][0] == 1 else "encoder.layers.0.")
    heads = max(1, sizes["heads"][0])
    queries = size(f"{layer}self_attn_weights.in_proj.weight", 0) // heads - POSITION_HEAD_DIM
    return {
        "name": "zipformer",
        **sizes,
        "subsampling": {
            "name": "convnext",
            "channels": [size(f"encoder_embed.conv.{number}.weight", 0) for number in (0, 4, 7)],
            "dropout": DROPOUT,
        },
        "block": {
            "name": "zipformer_block",
            "query_head_dim": queries // 2,
            "value_head_dim": size(f"{layer}self_attn1.in_proj.weight", 0) // heads,
            "position_head_dim": POSITION_HEAD_DIM,
            "position_dim": size(f"{layer}self_attn_weights.linear_pos.weight", 1),
            "dropout": DROPOUT,
        },
    }


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


def _tokens(checkpoint: Path, vocab_size: int) -> Tokens:
    """Convert the SentencePiece model that belongs to a checkpoint."""
    found = [file for place in SUBWORD_PLACES for file in sorted(checkpoint.parent.glob(f"{place}{SUBWORDS}"))]
    if not found:
        must = f"{SUBWORDS} must be beside {checkpoint.name}, in the folder above, or in data/lang_bpe_*"
        raise InputError(f"{must}; it is missing. Copy it there.")
    if found[0].stat().st_size > MAX_BYTES:
        raise InputError(f"{found[0]} must have at most {MAX_BYTES:,} bytes; it has {found[0].stat().st_size:,}.")
    content = found[0].read_bytes()
    processor = processor_of(content)
    if processor.vocab_size() != vocab_size:
        must = f"{SUBWORDS} must have a piece for each of the {vocab_size} outputs of the checkpoint"
        raise InputError(f"{must}; {found[0]} has {processor.vocab_size()}. Copy the right one.")
    names = [processor.id_to_piece(number) for number in range(vocab_size)]
    unknown = processor.unk_id()
    if names[0] != BLANK_NAME or unknown < 1:
        raise InputError(f"{SUBWORDS}: piece 0 must be {BLANK_NAME}; got {shown(names[0])}.")
    order = [0, unknown, *(number for number in range(1, vocab_size) if number != unknown)]
    pieces = [_piece(number, names[number], processor) for number in order[1:]]
    model = with_blank(model_of(pieces, algorithm(content), charsmap(content)))
    hidden = [token for token, number in enumerate(order) if token > UNKNOWN_ID and _is_hidden(number, processor)]
    config = {"name": "sentencepiece", "algorithm": algorithm(content), "vocab_size": vocab_size}
    spelling = [names[number] for token, number in enumerate(order) if token > UNKNOWN_ID and token not in hidden]
    hidden_names = [names[order[token]] for token in hidden]
    return Tokens(Vocabulary(config, {FILE: model} | hidden_files(hidden), spelling, hidden_names, notes=[]), order)


def _is_hidden(number: int, processor: Any) -> bool:
    return processor.id_to_piece(number) == BOUNDARY_NAME or processor.is_control(number)


def _piece(number: int, name: str, processor: Any) -> SubwordPiece:
    kind = UNKNOWN if processor.is_unknown(number) else CONTROL if _is_hidden(number, processor) else NORMAL
    return SubwordPiece(name, processor.get_score(number), kind)


def fits(config: Mapping[str, Any]) -> bool:
    """Whether a model of asr, given its config, has the encoder of icefall."""
    return bool(config["encoder"]["name"] == "zipformer")


def write(bundle: Bundle, path: Path) -> dict[str, bytes]:
    """Convert a bundle to icefall's files, by name."""
    config, encoder = bundle.config, bundle.config["encoder"]
    features = default_settings("features", FEATURES)
    lhotses = {f"features.{key}": (features[key],) for key in ("snip_edges", "high_hertz", "full_scale")}
    check_parts(config, "icefall", PARTS | lhotses, CURES)
    if PROMPT in config:
        raise InputError(f"a model for conversion to {MODEL} must have no prompt; it has one.")
    if encoder["block"]["position_head_dim"] != POSITION_HEAD_DIM:
        must = f"encoder.block.position_head_dim must be {POSITION_HEAD_DIM} for conversion to icefall"
        raise InputError(f"{must}; got {encoder['block']['position_head_dim']}.")
    model = bundle_recognizer(bundle, path).model
    if config["tokenizer"]["name"] != "sentencepiece":
        must = "tokenizer must be sentencepiece for conversion to icefall"
        raise InputError(f"{must}; got {shown(config['tokenizer']['name'])}.")
    names, order = _given(bundle.files[FILE])
    tensors = give(model.state_dict(), counterparts(encoder, order, {}))
    tensors |= {name: torch.full((dim,), 0.5) for name, dim in _unused_shares(encoder).items()}
    saved = io.BytesIO()
    torch.save({ENTRY: tensors}, saved)
    listed = "".join(f"{name} {number}\n" for number, name in enumerate(names))
    return {CHECKPOINT: saved.getvalue(), SUBWORDS: _subwords(bundle.files[FILE], order), TOKENS: listed.encode()}


def _given(content: bytes) -> tuple[list[str], list[int]]:
    """Return icefall's names of the pieces, and the number of icefall's output for each of our tokens.

    icefall's recipes have the blank, <sos/eos> and the unknown piece first; without <sos/eos>, the unknown piece is 1.
    """
    processor = processor_of(content)
    names = [processor.id_to_piece(number) for number in range(processor.vocab_size())]
    names[0] = BLANK_NAME
    order = [*range(len(names))]
    if len(names) > 2 and names[2] == BOUNDARY_NAME:
        order[1:3] = [2, 1]
        names[1:3] = [names[2], names[1]]
    return names, order


def _subwords(content: bytes, order: Sequence[int]) -> bytes:
    """Return icefall's SentencePiece model: its first pieces are user-defined, as the recipes train it."""
    processor = processor_of(content)
    pieces = {}
    for token, number in enumerate(order):
        name = processor.id_to_piece(token)
        kind = USER_DEFINED if number == 0 or name == BOUNDARY_NAME else NORMAL
        kind = UNKNOWN if processor.is_unknown(token) else kind
        pieces[number] = SubwordPiece(BLANK_NAME if token == 0 else name, processor.get_score(token), kind)
    return model_of([pieces[number] for number in sorted(pieces)], algorithm(content), charsmap(content))
