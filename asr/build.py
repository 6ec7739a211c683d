"""The wiring: which object gets which other. YAML says which component and how big; nothing else is decided there."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from asr.confidence import UNCALIBRATED, Calibration
from asr.data.dataset import Augmentation
from asr.errors import InputError
from asr.interfaces import Features, Schedule, Tokenizer
from asr.recognizer import Recognizer
from asr.text import get_normalizer

Config = Mapping[str, Any]

HERE = Path(__file__).parent

MODEL_KEYS = ("normalizer", "tokenizer", "features", "encoder", "head", "decode")  # of a config: what a bundle holds
OPTIMIZERS = {"adamw": partial(torch.optim.AdamW, fused=True)}  # one pass over the weights: less memory traffic


def build_recognizer(
    config: Config, tokenizer: Tokenizer, features: Features, calibration: Calibration = UNCALIBRATED
) -> Recognizer:
    """Make a recogniser with fresh weights around a fitted tokenizer and fitted features."""
    normalize = get_normalizer(config["normalizer"])
    encoder = component("encoder", config["encoder"])(features.dim)
    head = component("head", config["head"])(encoder.output_dim, tokenizer.vocab_size)
    decode = component("decode", config["decode"])(tokenizer, normalize)
    return Recognizer(normalize, tokenizer, features, encoder, head, decode, calibration)


def build_tokenizer(config: Config) -> Tokenizer:
    """Make a tokenizer that has yet to `fit` or `load`."""
    return component("tokenizer", config["tokenizer"])()


def build_features(config: Config) -> Features:
    """Make features whose normalisation has yet to `fit` or `load`."""
    return component("features", config["features"])()


def build_augmentation(config: Config, sample_rate: int) -> Augmentation:
    """Make what changes training utterances, each part at its stage: plan (speed), waveform, features."""
    stages: dict[str, list[Any]] = {"plan": [], "waveform": [], "features": []}
    for name, settings in (config.get("augment") or {}).items():
        make = component("augment", {"name": name, **(settings or {})})
        stage: str = vars(make.func)["stage"]
        stages[stage].append(make() if stage == "features" else make(sample_rate))
    if len(stages["plan"]) > 1:
        raise InputError(f"augment must hold one change of speed at most; got {len(stages['plan'])}.")
    return Augmentation(next(iter(stages["plan"]), None), stages["waveform"], stages["features"])


def build_schedule(config: Config) -> Schedule:
    """Make the learning-rate schedule."""
    return component("schedule", config["schedule"])()


def build_optimizer(config: Config, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Make the optimizer; vectors (biases, norms) are not decayed, they have no direction to shrink."""
    settings = dict(config["optimizer"])
    name = settings.pop("name")
    if name not in OPTIMIZERS:
        raise InputError(f"optimizer.name must be one of {', '.join(OPTIMIZERS)}; got {name!r}.")
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim > 1]
    vectors = [parameter for parameter in trained if parameter.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return OPTIMIZERS[name](groups, **settings)


def component(group: str, config: Config) -> partial[Any]:
    """Find the class that a config names, with its settings filled in and the wired arguments still to come.

    `group` and `config["name"]` name the file `asr/<group>/<name>.py`; the class is the one defined there that is
    called like the file. A setting that is itself such a config, say `norm: {name: layer_norm, ...}` in group
    `encoder`, is found in the group `encoder/norm` in the same way and handed over as a callable.

    A bundle's config may come from a stranger: nothing outside these files can be named, let alone imported.

    Raises:
        InputError: there is no such component, or the settings are not those that its class asks for.
    """
    where = group.replace("/", ".")
    if not isinstance(config, Mapping) or "name" not in config:
        raise InputError(f"{where} must be a mapping with the key name; got {config!r}.")
    cls = _find_class(group, config["name"])
    settings = {key: value for key, value in config.items() if key != "name"}
    asked = {p.name for p in inspect.signature(cls).parameters.values() if p.kind is p.KEYWORD_ONLY}
    if settings.keys() != asked:
        must = f"{where} ({config['name']}) must set exactly {', '.join(sorted(asked)) or 'nothing'}"
        missing, unknown = ", ".join(sorted(asked - settings.keys())), ", ".join(sorted(settings.keys() - asked))
        raise InputError(f"{must}; missing: {missing or 'none'}, unknown: {unknown or 'none'}.")
    parts = [key for key, value in settings.items() if isinstance(value, Mapping) or (HERE / group / key).is_dir()]
    nested = {key: component(f"{group}/{key}", settings[key]) for key in parts}
    return partial(cls, **settings | nested)


def _find_class(group: str, name: object) -> Callable[..., Any]:
    folder = HERE / group
    here = group.replace("/", ".")
    parts = [*group.split("/"), name]
    safe = all(isinstance(part, str) and re.fullmatch(r"[a-z][a-z0-9_]*", part) for part in parts)
    if not safe or not (folder / f"{name}.py").is_file():
        there = ", ".join(sorted(file.stem for file in folder.glob("[a-z]*.py"))) if folder.is_dir() else "none"
        raise InputError(f"{here}.name must be a file in asr/{group} ({there}); got {name!r}.")
    module = importlib.import_module(f"asr.{here}.{name}")
    for cls in vars(module).values():
        named_like_file = isinstance(cls, type) and cls.__name__.lower() == str(name).replace("_", "")
        if named_like_file and cls.__module__ == module.__name__:
            return cls
    raise InputError(f"{here}.name must be a component; asr/{group}/{name}.py holds only parts of one.")
