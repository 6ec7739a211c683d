"""Latencies of models whose chunk is their look-ahead: each latency is a chunk size of the training."""

import math

from asr.core.recognition.model import Model
from asr.errors import InputError

TOLERANCE = 1e-6  # seconds


def latencies(model: Model) -> list[float]:
    """Return the latencies of a model, in seconds: the durations of its chunks. [] if it allows any chunk."""
    encoder = model.encoder.streaming
    return [] if encoder is None else [size * model.frame_seconds for size in encoder.chunk_choices]


def listed(model: Model) -> str:
    """Write the latencies of a model as in a sentence: 0.32, 0.08 or 0.56."""
    *others, last = [f"{seconds:g}" for seconds in latencies(model)]
    return f"{', '.join(others)} or {last}" if others else last


def latency_frames(model: Model, seconds: float, name: str = "latency") -> int:
    """Return the chunk size of one of the latencies of a model, in encoder frames.

    Args:
        model: a model with a list of latencies.
        seconds: one of its latencies.
        name: name of the value, for errors.

    Raises:
        InputError: the model has no list of latencies, or this latency is not one of them.
    """
    encoder = model.encoder.streaming
    if encoder is None or not encoder.chunk_choices:
        must = f"{name} is for models that were trained for a list of look-aheads; this model has none"
        raise InputError(f"{must}. Leave it out.")
    sizes = encoder.chunk_choices
    frames = [size for size in sizes if math.isclose(size * model.frame_seconds, seconds, abs_tol=TOLERANCE)]
    if not frames:
        raise InputError(f"{name} must be {listed(model)} seconds for this model; got {seconds:g}.")
    if model.is_program and frames[0] != encoder.chunk_frames:
        fixed = (encoder.chunk_frames or 0) * model.frame_seconds
        must = f"{name} is fixed when a model is exported ({fixed:g} seconds)"
        raise InputError(f"{must}; got {seconds:g}. Leave it out.")
    return frames[0]


def set_latency(model: Model, seconds: float, name: str = "latency") -> int:
    """Set the chunk size of a model, for whole recordings and for streams; return it, in encoder frames.

    Arguments and errors are those of `latency_frames`.
    """
    frames = latency_frames(model, seconds, name)
    if model.encoder.streaming is not None:
        model.encoder.streaming.chunk_frames = frames
    return frames
