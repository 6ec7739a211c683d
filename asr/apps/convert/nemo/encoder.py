"""Conversion between NVIDIA NeMo's config of an encoder and asr's config."""

import math
from typing import Any

from asr.apps.convert import causal
from asr.apps.convert.conformer import CONFORMER, CONFORMER_PARTS, EPS, FULL_ATTENTION, LOCAL_ATTENTION, check_conformer
from asr.apps.convert.nemo.config import NORMALIZATIONS, check_class
from asr.apps.convert.section import Section, as_yaml, check, mapping, whole
from asr.base.settings.conf import default_settings
from asr.errors import InputError

LOCAL = "rel_pos_local_attn"
ATTENTIONS = {FULL_ATTENTION: "rel_pos", LOCAL_ATTENTION: LOCAL}  # asr's name: NeMo's self_attention_model
SUBSAMPLINGS = {  # NeMo's name and factor
    "strided_conv": ("striding", 4),
    "depthwise_conv": ("dw_striding", 8),
    "causal_conv": ("dw_striding", 8),  # with causal_downsampling
}
CHUNKED = "chunked_limited"  # NeMo's att_context_style of causal encoders
# NeMo's att_context_style of encoders trained with chunks and with whole recordings; its settings do not change the
# output for a whole recording.
UNIFIED = "chunked_limited_with_rc"
OF_CHUNKS = ("att_context_style", "att_chunk_context_size", "conv_context_style")
ENCODERS: dict[str, dict[str, tuple[object, ...]]] = {  # encoders and parts of asr that NeMo has
    CONFORMER: CONFORMER_PARTS
    | {
        "encoder.subsampling": ("strided_conv", "depthwise_conv"),
        "encoder.block.attention": tuple(ATTENTIONS),
        "features.normalize": tuple(NORMALIZATIONS),
    },
    causal.STREAMING: causal.PARTS,
}
# Keys that may have any value here: they are converted or checked elsewhere, or do not affect a trained model's output.
ENCODER_KEYS = {
    "_target_",
    *("feat_in", "n_layers", "d_model", "n_heads", "ff_expansion_factor", "xscaling", "conv_kernel_size"),
    *("subsampling_conv_channels", "subsampling_conv_chunking_factor", "reduction_position", "reduction_factor"),
    *("untie_biases", "pos_emb_max_len", "att_context_probs", "global_tokens_spacing", "global_attn_separate"),
    *("dropout", "dropout_pre_encoder", "dropout_emb", "dropout_att", "sync_max_audio_length"),
    *("stochastic_depth_drop_prob", "stochastic_depth_mode", "stochastic_depth_start_layer"),
    *("use_pytorch_sdpa", "use_pytorch_sdpa_backends"),
}


def encoder_config(config: Section) -> dict[str, Any]:
    """Return the config of asr's encoder."""
    nemo = mapping(config.get("encoder"), "encoder")
    check_class(nemo, "encoder", "ConformerEncoder", "a Conformer")
    nemo = {key: value for key, value in nemo.items() if key not in ignored(config)}
    dim, kernel_size = whole(nemo, "encoder.d_model"), whole(nemo, "encoder.conv_kernel_size", 31)
    is_causal, context = nemo.get("att_context_style") == CHUNKED, kernel_size // 2
    theirs = nemo.get("subsampling", "striding")
    is_local = nemo.get("self_attention_model") == LOCAL or (not is_causal and _is_limited(nemo))
    subsampling = next((ours for ours, (kind, _) in SUBSAMPLINGS.items() if kind == theirs), "strided_conv")
    check(
        nemo,
        "encoder",
        ENCODER_KEYS | ({"att_context_size"} if is_local or is_causal else set()),
        {
            "feat_out": (-1, (-1, 0, None, dim)),
            "causal_downsampling": (False, (False,)),
            "subsampling": ("striding", tuple(kind for kind, _ in SUBSAMPLINGS.values())),
            "subsampling_factor": (4, (SUBSAMPLINGS[subsampling][1],)),
            "reduction": (None, (None, False)),
            "self_attention_model": ("rel_pos", tuple(ATTENTIONS.values())),
            **({} if is_local or is_causal else {"att_context_size": (None, (None, [-1, -1], [[-1, -1]]))}),
            "att_context_style": ("regular", ("regular",)),
            "att_chunk_context_size": (None, (None,)),
            "conv_norm_type": ("batch_norm", ("batch_norm",)),
            "conv_context_size": (None, (None, [context, context])),
            "conv_context_style": ("regular", ("regular",)),
            "use_bias": (True, (True, False)),
            "global_tokens": (0, (0,)),
            **(_of_causal(kernel_size) if is_causal else {}),
        },
    )
    channels = whole(nemo, "encoder.subsampling_conv_channels", -1)
    dropout, bias = nemo.get("dropout", 0.1), bool(nemo.get("use_bias", True))
    encoder = {
        "name": CONFORMER,
        "dim": dim,
        "num_layers": whole(nemo, "encoder.n_layers"),
        "last_norm": False,
        "subsampling": {
            "name": subsampling,
            "num_channels": dim if channels == -1 else channels,
            "dropout": nemo.get("dropout_pre_encoder", dropout),
        },
        "block": {
            "name": "conformer_block",
            "num_heads": whole(nemo, "encoder.n_heads", 4),
            "feed_forward_factor": nemo.get("ff_expansion_factor", 4),
            "feed_forward_bias": bias,
            "dropout": dropout,
            "attention": _local_attention(nemo, bias) if is_local else {"name": FULL_ATTENTION, "bias": bias},
            "convolution": {"name": "depthwise_convolution", "kernel_size": kernel_size, "bias": bias},
            "norm": default_settings("encoder/block/norm", "masked_batch_norm") | {"eps": EPS},
            "activation": default_settings("encoder/block/activation", "swish"),
        },
    }
    return causal.causal(encoder, *_contexts(nemo), "encoder.att_context_size") if is_causal else encoder


def ignored(config: Section) -> list[str]:
    """Return the settings of the encoder that do not change its output for a whole recording."""
    encoder = mapping(config.get("encoder"), "encoder")
    return [key for key in OF_CHUNKS if key in encoder] if encoder.get("att_context_style") == UNIFIED else []


def _is_limited(nemo: Section) -> bool:
    """Whether attention over a whole recording has a limit, the same on both sides: a band of its softmax."""
    sides = _pair(nemo)
    return _is_pair(sides) and sides[0] == sides[1]


def _pair(nemo: Section) -> Any:
    """Return `att_context_size`, which may be in a list of its own."""
    given = nemo.get("att_context_size")
    return given[0] if isinstance(given, list) and len(given) == 1 and isinstance(given[0], list) else given


def _of_causal(kernel_size: int) -> dict[str, tuple[object, tuple[object, ...]]]:
    """Return the restricted settings that a causal encoder has with other values than a Conformer."""
    return {
        "causal_downsampling": (False, (True,)),
        "subsampling": ("striding", ("dw_striding",)),
        "subsampling_factor": (4, (8,)),
        "self_attention_model": ("rel_pos", (ATTENTIONS[FULL_ATTENTION],)),
        "att_context_style": ("regular", (CHUNKED,)),
        "conv_norm_type": ("batch_norm", ("layer_norm",)),
        "conv_context_size": (None, ("causal", [kernel_size - 1, 0])),
    }


def _contexts(nemo: Section) -> tuple[int, list[int]]:
    """Return the left context and the look-aheads of a causal encoder, in encoder frames."""
    given = nemo.get("att_context_size")
    pairs: list[Any] = given if isinstance(given, list) and given and isinstance(given[0], list) else [given]
    lefts = {pair[0] for pair in pairs} if all(map(_is_pair, pairs)) else set()
    if len(lefts) != 1:
        must = f"encoder.att_context_size must be pairs of one left context and a look-ahead with {CHUNKED}"
        raise InputError(f"{must}, such as [[70, 13], [70, 0]]; got {as_yaml(given)}.")
    return lefts.pop(), [look_ahead for _, look_ahead in pairs]


def _is_pair(value: object) -> bool:
    """Whether a value is a list of two numbers of frames."""
    return isinstance(value, list) and len(value) == 2 and all(type(n) is int and n >= 0 for n in value)


def _local_attention(nemo: Section, bias: bool) -> dict[str, Any]:
    """Return the config of asr's local attention."""
    given, sides = nemo.get("att_context_size"), _pair(nemo)
    if not isinstance(sides, list) or len(sides) != 2 or sides[0] != sides[1]:
        must = f"encoder.att_context_size must be equal on both sides, such as [128, 128], with {LOCAL}"
        raise InputError(f"{must}; got {as_yaml(given)}.")
    return {"name": LOCAL_ATTENTION, "context": sides[0], "bias": bias}


def scale(config: Section) -> float:
    """Return the factor by which NeMo scales the subsampling's output; asr does not scale it."""
    encoder = mapping(config.get("encoder"), "encoder")
    return math.sqrt(whole(encoder, "encoder.d_model")) if encoder.get("xscaling", True) else 1.0


def nemo_encoder(config: Section) -> dict[str, Any]:
    """Convert the config of an asr model to the section of NeMo's config for the encoder."""
    check_conformer(config, "NeMo", ENCODERS)
    encoder, block = config["encoder"], config["encoder"]["block"]
    if block["feed_forward_factor"] != int(block["feed_forward_factor"]):
        must = "encoder.block.feed_forward_factor must be a whole number for conversion to NeMo"
        raise InputError(f"{must}; got {block['feed_forward_factor']}.")
    if len({block["feed_forward_bias"], block["attention"]["bias"], block["convolution"]["bias"]}) > 1:
        must = (
            "the biases of encoder.block (feed_forward_bias, attention.bias, convolution.bias) must be equal for NeMo"
        )
        raise InputError(f"{must}; got true and false.")
    attention, (subsampling, factor) = block["attention"], SUBSAMPLINGS[encoder["subsampling"]["name"]]
    return {
        "_target_": "nemo.collections.asr.modules.ConformerEncoder",
        "feat_in": config["features"]["num_mel_bins"],
        "feat_out": -1,
        "n_layers": encoder["num_layers"],
        "d_model": encoder["dim"],
        "subsampling": subsampling,
        "subsampling_factor": factor,
        "subsampling_conv_channels": encoder["subsampling"]["num_channels"],
        "ff_expansion_factor": int(block["feed_forward_factor"]),
        "self_attention_model": ATTENTIONS[attention["name"]],
        **({"att_context_size": 2 * [attention["context"]]} if attention["name"] == LOCAL_ATTENTION else {}),
        "n_heads": block["num_heads"],
        "xscaling": False,  # asr's weights of the subsampling contain the scale
        "untie_biases": True,
        "conv_kernel_size": block["convolution"]["kernel_size"],
        "conv_norm_type": "batch_norm",
        "use_bias": block["attention"]["bias"],
        "dropout": block["dropout"],
        "dropout_pre_encoder": encoder["subsampling"]["dropout"],
        "dropout_emb": 0.0,
        "dropout_att": block["dropout"],
        **(_causal_settings(encoder) if encoder["name"] == causal.STREAMING else {}),
    }


def _causal_settings(encoder: Section) -> dict[str, Any]:
    """Return the settings that a causal encoder has with other values than a Conformer."""
    return {
        "causal_downsampling": True,
        "att_context_size": [[encoder["left_frames"], number] for number in causal.look_aheads(encoder, "NeMo")],
        "att_context_style": CHUNKED,
        "conv_norm_type": "layer_norm",
        "conv_context_size": "causal",
    }
