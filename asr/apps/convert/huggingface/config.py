"""Conversion between asr's config and the config of a Parakeet model in Hugging Face's transformers.

An unknown key, or a setting that asr does not support, is an error.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from asr.apps.convert import causal
from asr.apps.convert.conformer import (
    CONFORMER,
    CONFORMER_PARTS,
    CTC,
    EPS,
    FULL_ATTENTION,
    JOINT_ACTIVATIONS,
    check_conformer,
    kind_of,
)
from asr.apps.convert.foreign import CTC_HEAD, HeadConfig
from asr.apps.convert.huggingface import streaming
from asr.apps.convert.huggingface.extractor import Frames, give_frames, take_frames
from asr.apps.convert.section import Section, as_yaml, check, mapping, whole
from asr.base.settings.conf import default_settings
from asr.core.build import PROMPT, decoders_of
from asr.core.decoder_choice import greedy_decoder
from asr.errors import InputError

FACTOR = 8
PREEMPHASIS = 0.97
DURATIONS = [0, 1, 2, 3, 4]  # transformers' default
MAX_SYMBOLS = 10  # transformers' default
MAX_FRAMES = 5_000  # a required setting of transformers; its encoders also accept longer inputs

# Keys that may have any value here: they are converted or checked elsewhere, or do not affect a trained model's output.
GENERAL_KEYS = {
    *("architectures", "dtype", "torch_dtype", "initializer_range", "model_type", "transformers_version"),
    *("_name_or_path", "return_dict", "output_attentions", "output_hidden_states", "use_cache"),
}
MODEL_KEYS = GENERAL_KEYS | {"ctc_loss_reduction", "ctc_zero_infinity", "encoder_config", "pad_token_id", "vocab_size"}
TRANSDUCER_KEYS = GENERAL_KEYS | {
    *("encoder_config", "vocab_size", "pad_token_id", "blank_token_id", "is_encoder_decoder"),
    *("decoder_hidden_size", "num_decoder_layers", "max_symbols_per_step"),
}
KEYS = {
    "parakeet_ctc": MODEL_KEYS,
    "parakeet_rnnt": TRANSDUCER_KEYS,
    "parakeet_tdt": TRANSDUCER_KEYS | {"durations"},
    streaming.MODEL: TRANSDUCER_KEYS,
    streaming.MODEL_WITH_PROMPT: TRANSDUCER_KEYS | streaming.PROMPT_KEYS,
}
ENCODERS: dict[str, dict[str, tuple[object, ...]]] = {  # encoders and parts of asr that transformers has
    CONFORMER: CONFORMER_PARTS
    | {"encoder.subsampling": ("depthwise_conv",), "encoder.block.attention": (FULL_ATTENTION,)},
    causal.STREAMING: causal.PARTS,
}
ENCODER_KEYS = GENERAL_KEYS | {
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "conv_kernel_size"),
    *("subsampling_conv_channels", "num_mel_bins", "attention_bias", "convolution_bias", "scale_input"),
    *("dropout", "dropout_positions", "layerdrop", "activation_dropout", "attention_dropout"),
    *("max_position_embeddings", "num_key_value_heads"),
}
EXTRACTOR = "ParakeetFeatureExtractor"


def encoder_section(config: Section) -> Section:
    """Return the encoder's section."""
    kind = config["model_type"]
    fixed: dict[str, Any] = {} if kind == "parakeet_ctc" else {"hidden_act": ("relu", JOINT_ACTIVATIONS)}
    fixed |= {"durations": ([], ([],))} if kind in streaming.NAMES else {}
    check(config, "config", KEYS[kind], fixed)
    return mapping(config.get("encoder_config"), "encoder_config")


def is_streaming(config: Section) -> bool:
    """Whether a model of transformers has a causal encoder."""
    return config["model_type"] in streaming.NAMES


def encoder_config(config: Section, processor: Section = MappingProxyType({})) -> dict[str, Any]:
    """Return the config of asr's encoder.

    Args:
        config: config of the model.
        processor: config of the model's processor, which contains the look-aheads of a causal encoder.
    """
    theirs, is_causal = encoder_section(config), is_streaming(config)
    dim, num_heads = whole(theirs, "encoder_config.hidden_size", 1024), _heads(theirs)
    check(
        theirs,
        "encoder_config",
        ENCODER_KEYS | (streaming.ENCODER_KEYS if is_causal else set()),
        {
            "hidden_act": ("silu", ("silu", "swish")),
            "subsampling_factor": (FACTOR, (FACTOR,)),
            "subsampling_conv_kernel_size": (3, (3,)),
            "subsampling_conv_stride": (2, (2,)),
        },
    )
    inner = whole(theirs, "encoder_config.intermediate_size", 4096)
    attention_bias, convolution_bias = (_switch(theirs, f"{part}_bias") for part in ("attention", "convolution"))
    encoder = {
        "name": CONFORMER,
        "dim": dim,
        "num_layers": whole(theirs, "encoder_config.num_hidden_layers", 24),
        "last_norm": False,
        "subsampling": {
            "name": "depthwise_conv",
            "num_channels": whole(theirs, "encoder_config.subsampling_conv_channels", 256),
            "dropout": theirs.get("dropout", 0.1),
        },
        "block": {
            "name": "conformer_block",
            "num_heads": num_heads,
            "feed_forward_factor": inner / dim if dim > 0 else inner,  # asr's encoder refuses an invalid dim
            "feed_forward_bias": attention_bias,
            "dropout": theirs.get("activation_dropout", 0.1),
            "attention": {"name": FULL_ATTENTION, "bias": attention_bias},
            "convolution": {
                "name": "depthwise_convolution",
                "kernel_size": whole(theirs, "encoder_config.conv_kernel_size", 9),
                "bias": convolution_bias,
            },
            "norm": default_settings("encoder/block/norm", "masked_batch_norm") | {"eps": EPS},
            "activation": default_settings("encoder/block/activation", "swish"),
        },
    }
    return causal.causal(encoder, *streaming.contexts(theirs, processor), "encoder_config") if is_causal else encoder


def head_config(config: Section) -> HeadConfig:
    """Return the config of asr's head, and of its greedy decoder."""
    kind = config["model_type"]
    if kind == "parakeet_ctc":
        return CTC_HEAD
    dim = whole(config, "decoder_hidden_size", 640)
    network = {"name": "lstm", "dim": dim, "num_layers": whole(config, "num_decoder_layers", 2), "dropout": 0.0}
    is_tdt = kind == "parakeet_tdt"
    head = default_settings("head", "tdt" if is_tdt else "transducer") | {
        "joint_dim": dim,
        "joint_activation": config.get("hidden_act", "relu"),
        "ctc_weight": 0.0,
        "predictor": network | {"trains_blank": False},
        **({"durations": config.get("durations", DURATIONS)} if is_tdt else {}),
    }
    max_symbols = whole(config, "max_symbols_per_step", MAX_SYMBOLS)
    return HeadConfig(
        head, default_settings("decode", greedy_decoder(decoders_of(head))) | {"max_symbols": max_symbols}
    )


def blank_of(config: Section) -> tuple[int, int]:
    """Return the number of tokens, including the blank, and the index of the blank."""
    is_ctc = config.get("model_type") == "parakeet_ctc"
    key, size, last = ("pad_token_id", 1025, 1024) if is_ctc else ("blank_token_id", 8193, 8192)
    vocab_size, blank = whole(config, "vocab_size", size), whole(config, key, last)
    if not 0 <= blank < vocab_size:
        raise InputError(f"{key} must be the blank's number, from 0 to {vocab_size - 1}; got {blank}.")
    return vocab_size, blank


def scale(config: Section) -> float:
    """Return the factor by which Parakeet scales the subsampling's output; asr does not scale it."""
    theirs = encoder_section(config)
    return math.sqrt(whole(theirs, "encoder_config.hidden_size", 1024)) if _switch(theirs, "scale_input") else 1.0


def _heads(theirs: Section) -> int:
    num_heads = whole(theirs, "encoder_config.num_attention_heads", 8)
    groups = theirs.get("num_key_value_heads", num_heads)
    if groups != num_heads:
        must = "encoder_config.num_key_value_heads must equal num_attention_heads"
        raise InputError(f"{must}, {num_heads}; got {as_yaml(groups)}.")
    return num_heads


def _switch(theirs: Section, key: str) -> bool:
    value = theirs.get(key, True)
    if not isinstance(value, bool):
        raise InputError(f"encoder_config.{key} must be true or false; got {as_yaml(value)}.")
    return value


def features_config(config: Section, theirs: Section, pad_mode: str) -> dict[str, Any]:
    """Return the config of asr's features.

    Args:
        config: config of the model.
        theirs: config of the model's feature extractor.
        pad_mode: padding of the waveform at both ends; transformers' feature extractor pads with zeros.
    """
    kind = streaming.EXTRACTOR if is_streaming(config) else EXTRACTOR
    expected = whole(encoder_section(config), "encoder_config.num_mel_bins", 80)
    fixed = {"preemphasis": (PREEMPHASIS, (PREEMPHASIS,)), "mel_filters_dtype": ("float32", ("float32",))}
    cmvn = default_settings("features/normalize", "utterance_cmvn") | {"eps": EPS}
    return {
        "name": "slaney_fbank",
        **take_frames(theirs, kind, ("feature_size", 80), expected, fixed).section,
        "pad_mode": pad_mode,
        "normalize": {"name": "none"} if is_streaming(config) else cmvn,
    }


def huggingface_config(config: Mapping[str, Any], vocab_size: int, blank: int) -> dict[str, Any]:
    """Convert the config of an asr model to a config of transformers.

    Args:
        config: config of the asr model.
        vocab_size: number of tokens of the model's head, including the blank.
        blank: index of the blank among transformers' pieces.
    """
    check_conformer(config, "Hugging Face", ENCODERS)
    encoder, features, block = config["encoder"], config["features"], config["encoder"]["block"]
    if block["feed_forward_bias"] != block["attention"]["bias"]:
        must = "encoder.block.feed_forward_bias must equal encoder.block.attention.bias for conversion to Hugging Face"
        raise InputError(f"{must}; got {as_yaml(block['feed_forward_bias'])}.")
    if features["num_mel_bins"] % FACTOR:
        must = f"features.num_mel_bins must be a multiple of {FACTOR}, as in Hugging Face"
        raise InputError(f"{must}; got {features['num_mel_bins']}.")
    if features["pad_mode"] != "zeros":
        raise InputError(f"features.pad_mode must be zeros, as in Hugging Face; got {features['pad_mode']}.")
    return {
        **_head_settings(config, blank),
        "dtype": "float32",
        "vocab_size": vocab_size,
        "pad_token_id": blank,
        "encoder_config": {
            "model_type": "parakeet_encoder",
            "hidden_size": encoder["dim"],
            "num_hidden_layers": encoder["num_layers"],
            "num_attention_heads": block["num_heads"],
            "intermediate_size": round(block["feed_forward_factor"] * encoder["dim"]),
            "hidden_act": "silu",
            "attention_bias": block["attention"]["bias"],
            "convolution_bias": block["convolution"]["bias"],
            "conv_kernel_size": block["convolution"]["kernel_size"],
            "subsampling_factor": FACTOR,
            "subsampling_conv_channels": encoder["subsampling"]["num_channels"],
            "subsampling_conv_kernel_size": 3,
            "subsampling_conv_stride": 2,
            "num_mel_bins": features["num_mel_bins"],
            "scale_input": False,  # asr's weights of the subsampling contain the scale
            "dropout": encoder["subsampling"]["dropout"],
            "dropout_positions": 0.0,
            "layerdrop": 0.0,
            "activation_dropout": block["dropout"],
            "attention_dropout": block["dropout"],
            "max_position_embeddings": MAX_FRAMES,
            **(streaming.encoder_settings(encoder) if encoder["name"] == causal.STREAMING else {}),
        },
    }


def _head_settings(config: Mapping[str, Any], blank: int) -> dict[str, Any]:
    """Return the settings of transformers' config for an asr head."""
    head, kind = config["head"], kind_of(config["head"])
    settings: dict[str, Any] = {"architectures": [f"ParakeetFor{kind}"], "model_type": f"parakeet_{kind.lower()}"}
    if config["encoder"]["name"] == causal.STREAMING:
        model = streaming.MODEL_WITH_PROMPT if PROMPT in config else streaming.MODEL
        settings = {"architectures": [f"{streaming.NAMES[model]}ForRNNT"], "model_type": model}
        if kind != "RNNT":
            must = "head must be transducer for conversion of a streaming model to Hugging Face"
            raise InputError(f"{must}; got {kind}.")
    elif PROMPT in config:
        must = f"a model with a prompt must have encoder={causal.STREAMING} for conversion to Hugging Face"
        raise InputError(f"{must}; got {config['encoder']['name']}.")
    if head["name"] == CTC:
        return settings
    predictor = head["predictor"]
    if predictor["dim"] != head["joint_dim"]:
        must = "head.joint_dim must equal head.predictor.dim for conversion to Hugging Face"
        raise InputError(f"{must}; got {head['joint_dim']} and {predictor['dim']}.")
    return settings | {
        "is_encoder_decoder": True,
        "blank_token_id": blank,
        "decoder_hidden_size": predictor["dim"],
        "num_decoder_layers": predictor["num_layers"],
        "hidden_act": head["joint_activation"],
        "max_symbols_per_step": config["decode"].get("max_symbols", MAX_SYMBOLS),
        **({"durations": head["durations"]} if head["durations"] else {}),
    }


def processor_class(config: Section) -> str:
    """Return the name of transformers' class for the processor of a model."""
    return f"{streaming.NAMES.get(config['model_type'], 'Parakeet')}Processor"


def preprocessor_config(theirs: Section, window: int, hop: int, features: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of transformers' feature extractor.

    Args:
        theirs: transformers' config of the model.
        window: length of the window, in samples.
        hop: length of the hop, in samples.
        features: config of asr's features.
    """
    kind = streaming.EXTRACTOR if is_streaming(theirs) else EXTRACTOR
    frames = Frames(features["sample_rate"], window, hop, features["num_mel_bins"])
    own = {"feature_size": frames.num_mel_bins, "preemphasis": PREEMPHASIS}
    return give_frames(kind, processor_class(theirs), frames) | own
