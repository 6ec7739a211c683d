"""Small models for the checks of encoders and heads."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from asr.base.settings.conf import default_settings, names, overridden
from asr.core.build import build_features, build_model, build_tokenizer
from asr.core.recognition.model import Model

NUM_MEL_BINS, SAMPLE_RATE = 20, 16_000  # Hz
LETTERS = "abcdef"  # each is a token: 1 to 6
STACKS = {  # sizes of an encoder of several stacks
    "dims": [16, 16, 16],
    "layers": [1, 2, 1],
    "strides": [1, 4, 2],
    "heads": [2, 2, 2],
    "feed_forward_dims": [32, 32, 32],
    "kernel_sizes": [3, 3, 3],
}
SMALL = {  # sizes of asr's own encoders and heads, each of which has only some of these keys
    "dim": 16,
    "num_layers": 4,  # with fewer, all values of a subsampling with ReLU may be zero
    "num_heads": 2,
    "feed_forward_factor": 2,
    "dropout": 0.0,
    "block": {"num_heads": 2, "feed_forward_factor": 2, "dropout": 0.0, "convolution": {"kernel_size": 3}},
    "subsampling": {"num_channels": 16, "channels": [4, 8, 8], "dropout": 0.0},
    **STACKS,
}


def without_dropout(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a component and its parts in which each dropout is 0."""
    return {
        key: without_dropout(value) if isinstance(value, Mapping) else 0.0 if key.endswith("dropout") else value
        for key, value in settings.items()
    }


def whole_with(group: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return small settings of a component of asr that has this part; None if no component has such a part.

    Args:
        group: group of the part, such as encoder/block/norm.
        settings: settings of the part.
    """
    whole, *path = group.split("/")
    for name in names(whole):
        small = overridden(default_settings(whole, name), SMALL)
        if "streaming" not in name and _put(small, path, dict(settings)):
            return without_dropout(small)
    return None


def _put(settings: dict[str, Any], path: Sequence[str], part: dict[str, Any]) -> bool:
    """Replace a part of a component, or of one of its parts, in its settings; return whether there is such a part."""
    *above, last = path
    for key in above:
        settings = settings.get(key, {})
    if last not in settings:
        return False
    settings[last] = part
    return True


def model_of(encoder: Mapping[str, Any], head: Mapping[str, Any]) -> Model:
    """Make a model of NUM_MEL_BINS features and a token for each of LETTERS, with new weights."""
    cmvn = default_settings("features/normalize", "global_cmvn")  # streaming encoders accept it
    features = default_settings("features", "fbank") | {"num_mel_bins": NUM_MEL_BINS, "normalize": cmvn}
    chosen = {"normalizer": "as_written", "tokenizer": {"name": "char"}, "features": features}
    fitted, tokenizer = build_features(chosen), build_tokenizer(chosen)
    tokenizer.fit([LETTERS])
    fitted.normalize.fit([torch.arange(4.0 * NUM_MEL_BINS).view(4, -1)])
    return build_model({**chosen, "encoder": encoder, "head": head}, tokenizer, fitted)


def unlike_new(model: Model, noise: float = 0.05) -> Model:
    """Change all parameters and running statistics of a model, so that none has its initial value."""
    weights = list(model.parameters())
    with torch.no_grad():
        for parameter in weights:
            parameter.add_(torch.randn_like(parameter), alpha=noise)
        model(torch.randn(4, 50, NUM_MEL_BINS, dtype=weights[0].dtype), torch.full((4,), 50))
    return model
