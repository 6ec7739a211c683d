"""The format number of a bundle's config, and the settings of older formats. Formats up to 10 were never released."""

import logging
from typing import Any

from asr.errors import InputError, shown

FORMAT = 14  # format number that this version writes; no number is ever used again
OLDEST = 11  # the first public format, which is read
BLOCKLESS = 11  # the last format in which an encoder has the settings of its blocks
FIXED_FBANKS = 12  # the last format in which each of FBANKS is a class without settings of its own
NO_FAST_EMIT = 13  # the last format in which a transducer has no setting `fast_emit`
KEY = "format"  # key of the format number in a config
BLOCKS = {  # block of each encoder of format 11
    "conformer": "conformer_block",
    "conformer_streaming": "streaming_block",
    "transformer": "transformer_block",
    "transformer_xl": "transformer_xl_block",
    "conformer_adapter": "conformer_block",
    "strided_conformer": "strided_block",
    "weighted_conformer": "weighted_block",
}
OF_BLOCKS = (  # settings of blocks
    *("num_heads", "feed_forward_factor", "feed_forward_bias", "feed_forward_weights", "convolution_weights", "eps"),
    *("dropout", "attention", "convolution", "norm", "activation", "residual"),
)
FBANKS = {  # settings of `fbank` that each class had
    "fbank": {"snip_edges": True, "high_hertz": 0, "full_scale": 32768},
    "mirrored_fbank": {"snip_edges": False, "high_hertz": -400, "full_scale": 1},
}
RESCORING = "lm_rescoring"  # a removed decoder: a search, `first`, whose hypotheses a neural language model rescored
RESCORING_MODEL = "language-model.safetensors"  # name of that language model's file in a bundle; it is ignored

logger = logging.getLogger(__name__)


def of_today(config: dict[str, Any], where: object) -> dict[str, Any]:
    """Check the format number of a config, and remove it; return the settings that this version has."""
    number = config.get(KEY, 0)
    if type(number) is not int or not OLDEST <= number <= FORMAT:
        must = f"{where}: the format of a model must be {OLDEST} to {FORMAT}; got {shown(number)}"
        is_older = type(number) is int and 0 <= number < OLDEST
        cure = "Convert it: python -m recipes.convert.bundle OLD NEW" if is_older else "A newer asr may read it"
        raise InputError(f"{must}. {cure}.")
    today = {key: value for key, value in config.items() if key != KEY}
    if number <= BLOCKLESS and isinstance(encoder := config.get("encoder"), dict):
        today["encoder"] = in_blocks(encoder)
    if number <= FIXED_FBANKS and isinstance(features := config.get("features"), dict):
        today["features"] = with_fbank_settings(features)
    if number <= NO_FAST_EMIT and isinstance(head := config.get("head"), dict) and head.get("name") == "transducer":
        today["head"] = {"fast_emit": 0.0} | head
    if isinstance(decode := config.get("decode"), dict) and decode.get("name") == RESCORING:
        logger.warning("%s: decode=%s was removed; its search is used, without the neural rescoring", where, RESCORING)
        return today | {"decode": decode.get("first")}
    return today


def in_blocks(encoder: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an encoder of format 11, with those of its blocks in the section `block`."""
    name = encoder.get("name")
    if name not in BLOCKS:
        return encoder
    block = {key: value for key, value in encoder.items() if key in OF_BLOCKS}
    whole = {key: value for key, value in encoder.items() if key not in OF_BLOCKS}
    if not name.startswith("transformer"):
        whole["last_norm"] = name == "weighted_conformer"
    if name == "weighted_conformer":
        whole["name"] = "conformer"
    return {**whole, "block": {"name": BLOCKS[name], **block}}


def with_fbank_settings(features: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of features of format 12, of which each kind of `fbank` was a class."""
    fixed = FBANKS.get(features.get("name", ""))
    return features if fixed is None else features | {"name": "fbank"} | fixed
