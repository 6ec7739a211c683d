"""The format number of a bundle's config, and the conversion of older formats."""

from collections.abc import Callable
from typing import Any

from asr.errors import InputError, shown

FORMAT = 10  # format number that this version writes
BASIC, FIRST_BASIC = "basic", "basic_1"  # a normaliser, and its version of up to format 9
KEY = "format"  # key of the format number in a config; absent in format 0


def of_today(config: dict[str, Any], where: object) -> dict[str, Any]:
    """Convert a config of any format to the current format, and remove the format number.

    Raises:
        InputError: the format number is invalid, or is that of a newer version.
    """
    number = config.get(KEY, 0)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= FORMAT:
        must = f"{where}: the format of a model must be from 0 to {FORMAT}, which this version of asr reads"
        raise InputError(f"{must}; got {shown(number)}. A newer asr may read it.")
    config = {key: value for key, value in config.items() if key != KEY}
    for change in CHANGES[number:]:
        config = change(config)
    return config


def _relative_feed_forward(config: dict[str, Any]) -> dict[str, Any]:
    """Replace the inner dimension of feed-forward modules (format 0) by its ratio to the encoder's dimension."""
    encoder = config.get("encoder")
    if not isinstance(encoder, dict) or "feed_forward_dim" not in encoder:
        return config
    inner, dim = encoder["feed_forward_dim"], encoder.get("dim")
    fits = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in (inner, dim))
    factor = inner / dim if fits else inner  # an invalid value is not changed; the encoder refuses it
    others = {key: value for key, value in encoder.items() if key != "feed_forward_dim"}
    return config | {"encoder": others | {"feed_forward_factor": factor}}


def _convolution_group(config: dict[str, Any]) -> dict[str, Any]:
    """Move the kernel size to the convolution module; up to format 1 it was a setting of the Conformer."""
    encoder = config.get("encoder")
    if not isinstance(encoder, dict) or "kernel_size" not in encoder:
        return config
    others = {key: value for key, value in encoder.items() if key != "kernel_size"}
    convolution = {"name": "depthwise_convolution", "kernel_size": encoder["kernel_size"]}
    return config | {"encoder": others | {"convolution": convolution}}


def _as_written(config: dict[str, Any]) -> dict[str, Any]:
    """Rename the normaliser `verbatim`, used up to format 2, to `as_written`."""
    return config | {"normalizer": "as_written"} if config.get("normalizer") == "verbatim" else config


def _activation_and_residual_groups(config: dict[str, Any]) -> dict[str, Any]:
    """Add settings for the activation and the residual connections; up to format 2, each encoder had fixed ones."""
    encoder = config.get("encoder")
    if not isinstance(encoder, dict) or encoder.get("name") not in ("conformer", "transformer"):
        return config
    parts: dict[str, Any] = {"activation": {"name": "swish", "beta": 1.0}}
    if encoder["name"] == "transformer":
        parts = {"activation": {"name": "relu"}, "residual": {"name": "pre_norm"}}
    return config | {"encoder": parts | encoder}


def _cmvn(config: dict[str, Any]) -> dict[str, Any]:
    """Rename the normalisations of features, which had other names up to format 2."""
    features = config.get("features")
    normalize = features.get("normalize") if isinstance(features, dict) else None
    if not isinstance(features, dict) or not isinstance(normalize, dict):
        return config
    names = {"training_set": "global_cmvn", "loud_frames": "loud_frame_cmvn"}
    name = normalize.get("name")
    normalize = normalize | {"name": names.get(name, name) if isinstance(name, str) else name}
    return config | {"features": features | {"normalize": normalize}}


def _optional_biases(config: dict[str, Any]) -> dict[str, Any]:
    """Add settings for the biases that all layers of the Conformer's blocks had up to format 2."""
    encoder = config.get("encoder")
    if not isinstance(encoder, dict) or encoder.get("name") != "conformer":
        return config
    parts = {key: encoder[key] for key in ("attention", "convolution") if isinstance(encoder.get(key), dict)}
    biased = {key: {"bias": True, **part} for key, part in parts.items()}
    return config | {"encoder": {"feed_forward_bias": True, **encoder, **biased}}


def _names_and_parts(config: dict[str, Any]) -> dict[str, Any]:
    return _optional_biases(_cmvn(_activation_and_residual_groups(_as_written(config))))


def _fusion_part(config: dict[str, Any]) -> dict[str, Any]:
    """Move the settings of fusion from the beam search, where they were up to format 3, to a separate section."""
    decode = config.get("decode")
    if not isinstance(decode, dict):
        return config
    named = ("lm", "lm_unit", "lm_weight", "word_score", "unknown_score", "lexicon", "hotwords", "hotword_score")
    fusion = {key: decode[key] for key in named if key in decode}
    if not fusion:
        return config
    others = {key: value for key, value in decode.items() if key not in fusion}
    return config | {"decode": others | {"fusion": {"name": "shallow_fusion", **fusion}}}


def _nothing_behind_a_chunk(config: dict[str, Any]) -> dict[str, Any]:
    """Add a right context of zero frames to streaming encoders, which had no such setting up to format 4."""
    encoder = config.get("encoder")
    if not isinstance(encoder, dict) or encoder.get("name") != "conformer_streaming":
        return config
    return config | {"encoder": {"right_frames": 0, "training_right_frames": [0]} | encoder}


def _word_insertion_bonus(config: dict[str, Any]) -> dict[str, Any]:
    """Rename the setting `word_score`, used up to format 5, to `word_insertion_bonus`."""
    decode = config.get("decode")
    fusion = decode.get("fusion") if isinstance(decode, dict) else None
    if not isinstance(decode, dict) or not isinstance(fusion, dict) or "word_score" not in fusion:
        return config
    named = {("word_insertion_bonus" if key == "word_score" else key): value for key, value in fusion.items()}
    return config | {"decode": decode | {"fusion": named}}


def _no_spelling(config: dict[str, Any]) -> dict[str, Any]:
    """Add the setting `spelling` to fusion, with no spelling model; the setting did not exist up to format 6."""
    decode = config.get("decode")
    fusion = decode.get("fusion") if isinstance(decode, dict) else None
    if not isinstance(decode, dict) or not isinstance(fusion, dict):
        return config
    return config | {"decode": decode | {"fusion": {"spelling": None} | fusion}}


def _transducer_of_other_toolkits(config: dict[str, Any]) -> dict[str, Any]:
    """Add settings for the joiner's tanh and the blank's trained embedding, which were fixed up to format 7."""
    head = config.get("head")
    if not isinstance(head, dict) or head.get("name") != "transducer":
        return config
    head, predictor = {"joint_activation": "tanh"} | head, head.get("predictor")
    if isinstance(predictor, dict) and predictor.get("name") == "lstm":
        head["predictor"] = {"trains_blank": True} | predictor
    return config | {"head": head}


def _whole_models(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config unchanged, because format 9 only adds bundles of adapters."""
    return config


def _first_basic(config: dict[str, Any]) -> dict[str, Any]:
    """Name the normaliser `basic` of up to format 9, which spelled and split some words differently, `basic_1`."""
    return config | {"normalizer": FIRST_BASIC} if config.get("normalizer") == BASIC else config


CHANGES: list[Callable[[dict[str, Any]], dict[str, Any]]] = [
    _relative_feed_forward,
    _convolution_group,
    _names_and_parts,
    _fusion_part,
    _nothing_behind_a_chunk,
    _word_insertion_bonus,
    _no_spelling,
    _transducer_of_other_toolkits,
    _whole_models,
    _first_basic,
]  # element n converts format n to format n + 1
