"""The causal streaming encoder of NeMo and transformers: a Conformer whose chunks are its look-ahead.

A frame sees the frames of its chunk up to the chunk's end: a look-ahead of r frames is a chunk of r + 1 frames without
right context. One model is trained for several look-aheads, all with one left context.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from asr.apps.convert.conformer import EPS, FULL_ATTENTION
from asr.base.settings.conf import default_settings
from asr.errors import InputError

STREAMING = "conformer_streaming"
PARTS: dict[str, tuple[object, ...]] = {  # parts of asr's causal encoder
    "encoder.last_norm": (False,),
    "encoder.block": ("streaming_block",),
    "encoder.subsampling": ("causal_conv",),
    "encoder.block.attention": (FULL_ATTENTION,),
    "encoder.block.convolution": ("causal_convolution",),
    "encoder.block.norm": ("layer_norm",),
    "features.normalize": ("none",),
}


def causal(encoder: Mapping[str, Any], left: int, look_aheads: Sequence[int], setting: str) -> dict[str, Any]:
    """Return the config of asr's causal encoder.

    Args:
        encoder: config of a Conformer with the same sizes.
        left: left context, in encoder frames.
        look_aheads: look-aheads of the training, in encoder frames; the first is the default.
        setting: the toolkit's name of these numbers, for errors.
    """
    for look_ahead in look_aheads:
        if left % (look_ahead + 1):
            must = f"{setting} must have a left context that is a multiple of look-ahead + 1"
            raise InputError(f"{must}; got {left} and {look_ahead}.")
    chunks = [look_ahead + 1 for look_ahead in look_aheads]
    return {
        **encoder,
        "name": STREAMING,
        "chunk_frames": chunks[0],
        "left_frames": left,
        "right_frames": 0,
        "training_chunk_frames": chunks,
        "training_left_frames": [left],
        "training_right_frames": [0],
        "subsampling": encoder["subsampling"] | {"name": "causal_conv"},
        "block": {
            **encoder["block"],
            "name": "streaming_block",
            "convolution": encoder["block"]["convolution"] | {"name": "causal_convolution"},
            "norm": default_settings("encoder/block/norm", "layer_norm") | {"eps": EPS},
        },
    }


def look_aheads(encoder: Mapping[str, Any], toolkit: str) -> list[int]:
    """Return the look-aheads of asr's causal encoder, in encoder frames; the first is the default."""
    left, chunks = encoder["left_frames"], [encoder["chunk_frames"], *encoder["training_chunk_frames"]]
    needed = {"right_frames": 0, "training_right_frames": [0], "training_left_frames": [left]}
    for key, value in needed.items():
        if encoder[key] != value:
            raise InputError(f"encoder.{key} must be {value} for conversion to {toolkit}; got {encoder[key]}.")
    if any(chunk is None or left % chunk for chunk in chunks):
        must = f"encoder.left_frames must be a multiple of encoder.chunk_frames for conversion to {toolkit}"
        raise InputError(f"{must}, also in training; got {left} and {chunks}.")
    return [chunk - 1 for chunk in dict.fromkeys(chunks)]
