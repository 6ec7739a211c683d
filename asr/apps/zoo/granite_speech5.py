"""Granite TurboCTC (GraniteSpeech5ForCTC) of Hugging Face's transformers: a Conformer with self-conditioned CTC."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from asr.apps.convert.account import ONE_FRAME, SAME, Counterparts, Layout, Row, give, outputs
from asr.apps.convert.conformer import EPS, Names
from asr.apps.convert.foreign import CTC_HEAD, Choices, HeadConfig, ModelParts, Weights, written_by
from asr.apps.convert.huggingface.config import GENERAL_KEYS
from asr.apps.convert.huggingface.extractor import Frames, give_frames, take_frames
from asr.apps.convert.huggingface.files import Folder, pop_weights, to_json
from asr.apps.convert.huggingface.tokenizer import give_vocabulary, take_vocabulary
from asr.apps.convert.section import Section, check, check_parts, has_encoder, mapping, whole
from asr.base.settings.conf import default_settings
from asr.core.build import PROMPT
from asr.core.checkpoint.bundle import Bundle
from asr.core.checkpoint.load import bundle_recognizer
from asr.core.hub.huggingface_files import CONFIG, PROCESSOR, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS
from asr.errors import InputError

MODEL, ENCODER_MODEL = "granite_speech5_ctc", "granite_speech5_encoder"  # model_type
ENCODER = "strided_conformer"
STACKED, PER_BIN = 2, 4  # frames; inputs of the encoder for each mel bin: 2 frames, with a delta each
DELTA_WINDOW = 3  # frames
FLOOR_BELOW_MAXIMUM = 8.0  # powers of ten: 80 dB
MAX_STRIDED = 10  # blocks
EXTRACTOR, PROCESSOR_CLASS = "GraniteSpeech5FeatureExtractor", "GraniteSpeech5Processor"
HEAD, TIED_HEAD, CONDITION = "encoder.out", "ctc_head", "encoder.out_mid"  # modules; the tied head has the same tensors

MODEL_KEYS = GENERAL_KEYS | {
    *("vocab_size", "pad_token_id", "encoder_config", "ctc_loss_reduction", "ctc_zero_infinity"),
    *("bos_token_id", "eos_token_id"),
}
ENCODER_KEYS = GENERAL_KEYS | {
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_mel_bins"),
    *("max_position_embeddings", "context_size", "conv_kernel_size", "conv_expansion_factor", "attention_bias"),
    *("attention_dropout", "activation_dropout"),
}
PARTS: dict[str, tuple[object, ...]] = {  # parts of asr that the model has
    PROMPT: (),
    "encoder": (ENCODER,),
    "encoder.last_norm": (False,),
    "encoder.block": ("strided_block",),
    "encoder.subsampling": ("stacked_deltas",),
    "encoder.subsampling.factor": (STACKED,),
    "encoder.block.attention": ("block_attention",),
    "encoder.block.convolution": ("expanded_convolution",),
    "encoder.block.norm": ("masked_batch_norm",),
    "encoder.block.norm.eps": (EPS,),
    "encoder.block.activation": ("swish",),
    "encoder.block.activation.beta": (1,),
    "features": ("htk_fbank",),
    "features.normalize": ("dynamic_range",),
    "features.normalize.range_db": (10 * FLOOR_BELOW_MAXIMUM,),
    "head": ("ctc_self_conditioned",),
    "head.num_intermediate": (1,),
}
BLOCK: dict[str, str | tuple[str, ...]] = {
    "norm_feed_forward1": "norm_feed_forward1",
    "feed_forward1.linear1": "feed_forward1.linear1",
    "feed_forward1.linear2": "feed_forward1.linear2",
    "norm_attention": "norm_self_att",
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.distances": "self_attn.rel_pos_emb",
    "attention.output": "self_attn.o_proj",
    "norm_convolution": "norm_conv",
    "convolution.pointwise1": "conv.pointwise_lin1",
    "convolution.depthwise": "conv.depthwise_conv",
    "convolution.norm": "conv.norm",
    "convolution.pointwise2": "conv.pointwise_lin2",
    "norm_feed_forward2": "norm_feed_forward2",
    "feed_forward2.linear1": "feed_forward2.linear1",
    "feed_forward2.linear2": "feed_forward2.linear2",
    "norm_output": "norm_out",
}
# asr's table of distances begins with the largest distance of a key before its query; transformers', of one after it.
FLIPPED = Layout(lambda shape: [shape], lambda x: x.flip(0), lambda x: [x.flip(0)])


def counterparts(blank: int) -> Counterparts:
    """Return the tensors of a model; `blank` is the index of the blank among the outputs of the head."""
    rows = outputs(blank)
    columns = Layout(lambda shape: [shape], lambda x: rows.join(x.T).T, lambda x: [part.T for part in rows.part(x.T)])
    outside = {"encoder.subsampling.linear": "encoder.input_linear"}
    others = {
        **{f"head.intermediate.ctc.linear.{kind}": ((f"{HEAD}.{kind}",), rows) for kind in ("weight", "bias")},
        "head.condition.weight": ((f"{CONDITION}.weight",), columns),
        "head.condition.bias": ((f"{CONDITION}.bias",), SAME),
    }
    names = Names("Hugging Face", outside, "encoder.layers", BLOCK, blank, others)

    def row(ours: str) -> Row:
        usual = names.row(ours)
        if ours.endswith(".distances.weight"):
            return usual._replace(layout=FLIPPED)
        # The pointwise convolutions of other toolkits are linear layers here, as in asr.
        return usual._replace(layout=SAME) if usual.layout is ONE_FRAME else usual

    return Counterparts(row)


def encoder_config(config: Section) -> dict[str, Any]:
    """Return the config of asr's encoder."""
    theirs = mapping(config.get("encoder_config"), "config.encoder_config")

    def number(key: str, default: int) -> int:
        return whole(theirs, f"encoder_config.{key}", default)

    dim, inner = number("hidden_size", 1024), number("intermediate_size", 4096)
    num_heads = number("num_attention_heads", 8)
    strided = theirs.get("subsample_layers")
    num_strided = len(strided) if isinstance(strided, list) else 2  # transformers' default is [0, 1]
    first = list(range(min(num_strided, MAX_STRIDED)))  # asr has strided blocks only before the others
    check(
        theirs,
        "encoder_config",
        ENCODER_KEYS,
        {
            "model_type": (ENCODER_MODEL, (ENCODER_MODEL,)),
            "hidden_act": ("silu", ("silu", "swish")),
            "subsample_layers": (first, (first, None)),
            "num_key_value_heads": (None, (num_heads, None)),
            "head_dim": (None, (dim // num_heads if num_heads > 0 else None, None)),
            "attention_bias": (True, (True, False)),
            "vocab_size": (16384, (whole(config, "config.vocab_size", 16384),)),
        },
    )
    return {
        "name": ENCODER,
        "dim": dim,
        "num_layers": number("num_hidden_layers", 16),
        "num_strided_layers": num_strided,
        "last_norm": False,
        "subsampling": {"name": "stacked_deltas", "factor": STACKED},
        "block": {
            "name": "strided_block",
            "num_heads": num_heads,
            "feed_forward_factor": inner / dim if dim > 0 else inner,  # asr's encoder refuses an invalid dim
            "feed_forward_bias": theirs.get("attention_bias", True),
            "dropout": theirs.get("activation_dropout", 0.0),
            "attention": {
                "name": "block_attention",
                "context": number("context_size", 128),
                "max_distance": number("max_position_embeddings", 512),
            },
            "convolution": {
                "name": "expanded_convolution",
                "kernel_size": number("conv_kernel_size", 7),
                "expansion": number("conv_expansion_factor", 2),
            },
            "norm": default_settings("encoder/block/norm", "masked_batch_norm") | {"eps": EPS},
            "activation": default_settings("encoder/block/activation", "swish"),
        },
    }


def features_config(config: Section, preprocessor: Section) -> dict[str, Any]:
    """Return the config of asr's features."""
    bins = whole(preprocessor, "preprocessor.num_mel_bins", 80)
    expected = whole(mapping(config.get("encoder_config"), "config.encoder_config"), "encoder_config.num_mel_bins", 80)
    fixed = {
        "delta_win_length": (DELTA_WINDOW, (DELTA_WINDOW,)),
        "logmel_floor_db": (FLOOR_BELOW_MAXIMUM, (FLOOR_BELOW_MAXIMUM,)),
        "feature_size": (PER_BIN * bins, (PER_BIN * bins,)),
    }
    return {
        "name": "htk_fbank",
        **take_frames(preprocessor, EXTRACTOR, ("num_mel_bins", 80), expected, fixed).section,
        "normalize": {"name": "dynamic_range", "range_db": 10 * FLOOR_BELOW_MAXIMUM},
    }


def read(folder: Folder, choices: Choices) -> ModelParts:
    """Convert the files of a folder, of which the weights are removed."""
    files, config, preprocessor, _ = folder
    if choices.texts is not None:
        raise InputError(f"--texts needs a model that was pre-trained only; {MODEL} has a head.")
    if choices.pad_mode != "zeros":
        raise InputError(f"--pad-mode must be absent for {MODEL}, which mirrors waveforms; got {choices.pad_mode}.")
    if TOKENIZER not in files:
        raise InputError(f"{TOKENIZER} must exist; it is missing.")
    check(config, "config", MODEL_KEYS, {"tie_word_embeddings": (True, (True,))})
    encoder, features = encoder_config(config), features_config(config, preprocessor)
    vocab_size, blank = whole(config, "config.vocab_size", 16384), whole(config, "config.pad_token_id", 0)
    if not 0 <= blank < vocab_size:
        raise InputError(f"config.pad_token_id must be the blank's number, from 0 to {vocab_size - 1}; got {blank}.")
    vocabulary = take_vocabulary(files[TOKENIZER], vocab_size, blank)
    tensors, sha256 = pop_weights(files)
    return ModelParts(
        vocabulary,
        features,
        encoder,
        Weights(_with_one_head(tensors), sha256, counterparts(blank)),
        HeadConfig(default_settings("head", "ctc_self_conditioned") | {"num_intermediate": 1}, CTC_HEAD.decode),
        writer=written_by("transformers", config.get("transformers_version")),
    )


def _with_one_head(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without the second name of the head's, which are usually stored once."""
    left = dict(tensors)
    for kind in ("weight", "bias"):
        if (tied := left.pop(f"{TIED_HEAD}.{kind}", None)) is not None:
            own = left.setdefault(f"{HEAD}.{kind}", tied)
            if not torch.equal(own, tied):
                must = f"{TIED_HEAD}.{kind} must equal {HEAD}.{kind}, as tie_word_embeddings says"
                raise InputError(f"{must}; they differ.")
    return left


fits = has_encoder(ENCODER)


def write(bundle: Bundle, path: Path) -> dict[str, bytes]:
    """Convert a bundle to the files of a folder for transformers, by name."""
    config = bundle.config
    check_parts(config, "Hugging Face", PARTS)
    model, encoder, block = bundle_recognizer(bundle, path).model, config["encoder"], config["encoder"]["block"]
    features = model.features
    tokenizer = give_vocabulary(config["tokenizer"], bundle.files)
    vocab_size = model.tokenizer.vocab_size
    written = {
        "architectures": ["GraniteSpeech5ForCTC"],
        "model_type": MODEL,
        "dtype": "float32",
        "vocab_size": vocab_size,
        "pad_token_id": tokenizer.blank,
        "tie_word_embeddings": True,
        "encoder_config": {
            "model_type": ENCODER_MODEL,
            "vocab_size": vocab_size,
            "hidden_size": encoder["dim"],
            "intermediate_size": round(block["feed_forward_factor"] * encoder["dim"]),
            "num_hidden_layers": encoder["num_layers"],
            "num_attention_heads": block["num_heads"],
            "num_mel_bins": features.dim,
            "hidden_act": "silu",
            "max_position_embeddings": block["attention"]["max_distance"],
            "context_size": block["attention"]["context"],
            "conv_kernel_size": block["convolution"]["kernel_size"],
            "conv_expansion_factor": block["convolution"]["expansion"],
            "subsample_layers": list(range(encoder["num_strided_layers"])),
            "attention_bias": block["feed_forward_bias"],
            "attention_dropout": block["dropout"],
            "activation_dropout": block["dropout"],
        },
    }
    extractor = {
        **give_frames(
            EXTRACTOR,
            PROCESSOR_CLASS,
            Frames(features.sample_rate, features.window, features.hop, features.dim),
        ),
        "feature_size": PER_BIN * features.dim,
        "num_mel_bins": features.dim,
        "delta_win_length": DELTA_WINDOW,
        "logmel_floor_db": FLOOR_BELOW_MAXIMUM,
    }
    return {
        CONFIG: to_json(written),
        PROCESSOR: to_json({"processor_class": PROCESSOR_CLASS, "feature_extractor": extractor}),
        TOKENIZER: tokenizer.content,
        TOKENIZER_CONFIG: to_json(tokenizer.settings | {"processor_class": PROCESSOR_CLASS}),
        WEIGHTS: save(give(model.state_dict(), counterparts(tokenizer.blank)), {"format": "pt"}),
    }
