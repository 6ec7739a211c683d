"""LASR of Hugging Face's transformers, such as Google's MedASR: a Conformer with rotary positions and CTC."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from asr.apps.convert.account import THREE, Counterparts, Layout, Row, give
from asr.apps.convert.conformer import CONFORMER, CTC, EPS, HEAD, QKV, Names
from asr.apps.convert.foreign import (
    CTC_HEAD,
    Choices,
    ModelParts,
    Vocabulary,
    Weights,
    is_hidden,
    written_by,
)
from asr.apps.convert.huggingface.config import GENERAL_KEYS
from asr.apps.convert.huggingface.extractor import Frames, give_frames, take_frames
from asr.apps.convert.huggingface.files import Folder, pop_weights, to_json
from asr.apps.convert.huggingface.parakeet import BLOCK
from asr.apps.convert.huggingface.tokenizer import Written, give_vocabulary, take_vocabulary
from asr.apps.convert.section import Section, check, check_parts, mapping, whole
from asr.base.settings.conf import default_settings
from asr.core.build import PROMPT
from asr.core.checkpoint.bundle import Bundle
from asr.core.checkpoint.load import bundle_recognizer
from asr.core.hub.huggingface_files import CONFIG, PREPROCESSOR, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS
from asr.errors import InputError

MODEL, ENCODER = "lasr_ctc", "lasr_encoder"  # model_type
WEIGHTED = "weighted_block"
EXTRACTOR = "LasrFeatureExtractor"
NORM_EPS = 1e-6  # transformers' default for the LayerNorms
BASE = 10_000.0  # of the rotary angles
MAX_POSITIONS = 10_000  # transformers' default, which limits nothing
UNKNOWN, UNKNOWN_NAME = 3, "<unk>"  # id of the unknown piece in transformers' LasrTokenizer

# Keys that may have any value: they do not affect the output of a trained model, or are converted below.
KEYS = {*GENERAL_KEYS, "ctc_loss_reduction", "ctc_zero_infinity", "encoder_config", "pad_token_id", "vocab_size"}
ENCODER_KEYS = {
    *GENERAL_KEYS,
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "attention_bias"),
    *("convolution_bias", "conv_kernel_size", "subsampling_conv_channels", "num_mel_bins", "layer_norm_eps"),
    *("feed_forward_residual_weights", "conv_residual_weights", "batch_norm_momentum", "rope_parameters"),
    *("dropout", "dropout_positions", "layerdrop", "activation_dropout", "attention_dropout"),
    "max_position_embeddings",
}
PARTS: dict[str, tuple[object, ...]] = {  # parts of asr that the model has
    PROMPT: (),
    "encoder": (CONFORMER,),
    "encoder.last_norm": (True,),
    "encoder.block": (WEIGHTED,),
    "encoder.subsampling": ("unpadded_conv",),
    "encoder.block.attention": ("rotary_attention",),
    "encoder.block.convolution": ("same_convolution",),
    "encoder.block.norm": ("masked_batch_norm",),
    "encoder.block.norm.eps": (EPS,),
    "encoder.block.activation": ("swish",),
    "encoder.block.activation.beta": (1,),
    "features": ("hann_fbank",),
    "features.normalize": ("none",),
    "head": (CTC,),
}
OUTSIDE = {
    "encoder.subsampling.linear1": "encoder.subsampler.dense_0",
    "encoder.subsampling.conv1": "encoder.subsampler.conv_0",
    "encoder.subsampling.conv2": "encoder.subsampler.conv_1",
    "encoder.subsampling.linear2": "encoder.subsampler.dense_1",
    "encoder.norm_output": "encoder.out_norm",
    HEAD: "ctc_head",
}


def counterparts(blank: int, num_heads: int) -> Counterparts:
    """Return the tensors of a model.

    Args:
        blank: index of the blank among the outputs of the head.
        num_heads: number of attention heads.
    """
    names = Names("Hugging Face", OUTSIDE, "encoder.layers", BLOCK, blank)

    def row(ours: str) -> Row:
        found = names.row(ours)
        return found._replace(layout=pairs(num_heads)) if f".{QKV}." in ours else found

    return Counterparts(row)


def pairs(num_heads: int) -> Layout:
    """Return the layout of queries, keys and values.

    transformers rotates channels i and i + D / H / 2 of a query or key as a pair, asr channels 2i and 2i + 1. Another
    order of channels, which is the same for queries and keys, does not change the scores.
    """

    def interleaved(x: Tensor) -> Tensor:
        return x.unflatten(0, (num_heads, 2, -1)).transpose(1, 2).flatten(0, 2)

    def halved(x: Tensor) -> Tensor:
        return x.unflatten(0, (num_heads, -1, 2)).transpose(1, 2).flatten(0, 2)

    def join(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.cat([interleaved(query), interleaved(key), value])

    def part(x: Tensor) -> list[Tensor]:
        query, key, value = x.chunk(3)
        return [halved(query), halved(key), value]

    return Layout(THREE.shapes, join, part)


def encoder_config(config: Section) -> dict[str, Any]:
    """Return the config of asr's encoder."""
    check(config, "config", KEYS, {})
    theirs = _encoder_section(config)
    dim, num_heads = (
        whole(theirs, "encoder_config.hidden_size", 512),
        whole(theirs, "encoder_config.num_attention_heads", 8),
    )
    check(
        theirs,
        "encoder_config",
        ENCODER_KEYS,
        {
            "model_type": (ENCODER, (ENCODER,)),
            "hidden_act": ("silu", ("silu", "swish")),
            "subsampling_conv_kernel_size": (5, (5,)),
            "subsampling_conv_stride": (2, (2,)),
            "num_key_value_heads": (num_heads, (num_heads,)),
        },
    )
    rotary = {"rope_type": ("default", ("default",)), "rope_theta": (BASE, (BASE,))}
    given = theirs.get("rope_parameters")
    check(mapping({} if given is None else given, "rope_parameters"), "rope_parameters", set(), rotary)
    inner, bias = whole(theirs, "encoder_config.intermediate_size", 2048), theirs.get("attention_bias", False)
    return {
        "name": CONFORMER,
        "dim": dim,
        "num_layers": whole(theirs, "encoder_config.num_hidden_layers", 17),
        "last_norm": True,
        "subsampling": {
            "name": "unpadded_conv",
            "num_channels": whole(theirs, "encoder_config.subsampling_conv_channels", 256),
            "dropout": theirs.get("dropout", 0.1),
        },
        "block": {
            "name": WEIGHTED,
            "num_heads": num_heads,
            "feed_forward_factor": inner / dim if dim > 0 else inner,  # asr's encoder refuses an invalid dim
            "feed_forward_bias": bias,
            "feed_forward_weights": theirs.get("feed_forward_residual_weights", [1.5, 0.5]),
            "convolution_weights": theirs.get("conv_residual_weights", [2.0, 1.0]),
            "eps": theirs.get("layer_norm_eps", NORM_EPS),
            "dropout": theirs.get("activation_dropout", 0.1),
            "attention": {"name": "rotary_attention", "bias": bias},
            "convolution": {
                "name": "same_convolution",
                "kernel_size": whole(theirs, "encoder_config.conv_kernel_size", 32),
                "bias": theirs.get("convolution_bias", False),
            },
            "norm": {"name": "masked_batch_norm", "momentum": theirs.get("batch_norm_momentum", 0.01), "eps": EPS},
            "activation": default_settings("encoder/block/activation", "swish"),
        },
    }


def _encoder_section(config: Section) -> Section:
    section = config.get("encoder_config")
    return {} if section is None else mapping(section, "encoder_config")


def features_config(config: Section, preprocessor: Section) -> dict[str, Any]:
    """Return the config of asr's features."""
    expected = whole(_encoder_section(config), "encoder_config.num_mel_bins", 128)
    return {
        "name": "hann_fbank",
        **take_frames(preprocessor, EXTRACTOR, ("feature_size", 128), expected, {}).section,
        "normalize": default_settings("features/normalize", "none"),
    }


def read(folder: Folder, choices: Choices) -> ModelParts:
    """Convert the files of a folder, of which the weights are removed."""
    if choices.texts is not None:
        raise InputError("--texts needs a model that was pre-trained only; LASR has a head.")
    if choices.pad_mode != "zeros":
        raise InputError(f"--pad-mode must be zeros for {MODEL}, whose frames are not centred; got {choices.pad_mode}.")
    files, config, preprocessor, _ = folder
    encoder, features = encoder_config(config), features_config(config, preprocessor)
    vocabulary, blank = _vocabulary(files, config)
    tensors, sha256 = pop_weights(files)
    weights = Weights(tensors, sha256, counterparts(blank, encoder["block"]["num_heads"]))
    writer = written_by("transformers", config.get("transformers_version"))
    return ModelParts(vocabulary, features, encoder, weights, CTC_HEAD, writer=writer)


def _vocabulary(files: Mapping[str, bytes], config: Section) -> tuple[Vocabulary, int]:
    """Return the vocabulary of the head, and the blank's index."""
    if TOKENIZER not in files:
        raise InputError(f"{TOKENIZER} must exist; it is missing.")
    vocab_size, blank = whole(config, "config.vocab_size", 512), whole(config, "config.pad_token_id", 0)
    if not 0 <= blank < vocab_size:
        raise InputError(f"pad_token_id must be the blank's number, from 0 to {vocab_size - 1}; got {blank}.")
    return _taken(files[TOKENIZER], vocab_size, blank), blank


def _taken(content: bytes, vocab_size: int, blank: int) -> Vocabulary:
    """Convert the tokenizer; its unknown piece is hidden, because transformers leaves it out of texts, too."""
    return take_vocabulary(content, vocab_size, blank, hides=lambda name: is_hidden(name) or name == UNKNOWN_NAME)


def fits(config: Section) -> bool:
    """Whether a model of asr, given its config, has the encoder of LASR."""
    return bool(config["encoder"].get("block", {}).get("name") == WEIGHTED)


def write(bundle: Bundle, path: Path) -> dict[str, bytes]:
    """Convert a bundle to the files of a folder for transformers, by name."""
    config, encoder, block = bundle.config, bundle.config["encoder"], bundle.config["encoder"]["block"]
    bias = block["feed_forward_bias"]
    check_parts(config, "Hugging Face", PARTS | {"encoder.block.attention.bias": (bias,)})
    model = bundle_recognizer(bundle, path).model
    tokenizer, features = give_vocabulary(config["tokenizer"], bundle.files), model.features
    written = {
        "architectures": ["LasrForCTC"],
        "model_type": MODEL,
        "dtype": "float32",
        "vocab_size": model.tokenizer.vocab_size,
        "pad_token_id": tokenizer.blank,
        "encoder_config": {
            "model_type": ENCODER,
            "hidden_size": encoder["dim"],
            "num_hidden_layers": encoder["num_layers"],
            "num_attention_heads": block["num_heads"],
            "intermediate_size": round(block["feed_forward_factor"] * encoder["dim"]),
            "hidden_act": "silu",
            "attention_bias": bias,
            "convolution_bias": block["convolution"]["bias"],
            "conv_kernel_size": block["convolution"]["kernel_size"],
            "subsampling_conv_channels": encoder["subsampling"]["num_channels"],
            "subsampling_conv_kernel_size": 5,
            "subsampling_conv_stride": 2,
            "num_mel_bins": features.dim,
            "layer_norm_eps": block["eps"],
            "feed_forward_residual_weights": block["feed_forward_weights"],
            "conv_residual_weights": block["convolution_weights"],
            "batch_norm_momentum": block["norm"]["momentum"],
            "rope_parameters": {"rope_type": "default", "rope_theta": BASE},
            "max_position_embeddings": MAX_POSITIONS,
            "dropout": encoder["subsampling"]["dropout"],
            "dropout_positions": 0.0,
            "layerdrop": 0.0,
            "activation_dropout": block["dropout"],
            "attention_dropout": block["dropout"],
        },
    }
    preprocessor = {
        **give_frames(
            EXTRACTOR,
            "LasrProcessor",
            Frames(features.sample_rate, features.window, features.hop, features.dim),
        ),
        "feature_size": features.dim,
    }
    return {
        CONFIG: to_json(written),
        PREPROCESSOR: to_json(preprocessor),
        TOKENIZER: tokenizer.content,
        TOKENIZER_CONFIG: to_json(_tokenizer_settings(tokenizer)),
        WEIGHTS: save(give(model.state_dict(), counterparts(tokenizer.blank, block["num_heads"])), {"format": "pt"}),
    }


def _tokenizer_settings(tokenizer: Written) -> dict[str, Any]:
    """Return the settings of the tokenizer; LasrTokenizer needs a unigram model whose unknown piece has a fixed id."""
    settings = tokenizer.settings | {"processor_class": "LasrProcessor"}
    if json.loads(tokenizer.content)["model"].get("unk_id") != UNKNOWN:
        return settings  # Parakeet's tokenizer, which accepts any model
    return settings | {"tokenizer_class": "LasrTokenizer", "eos_token": "</s>", "extra_ids": 0}
