"""Build the components that a config chooses, with their settings, and pass them to each other."""

import importlib
import inspect
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from asr.base.language_model.stored import is_token_model, read_token_model, token_model_file
from asr.base.language_model.token_histories import TokenHistories
from asr.base.settings.plugins import any_named, homes, plugin_of
from asr.base.settings.rule import Rule, one_of
from asr.base.text.normalize import get_normalizer
from asr.core.data.dataset import Augmentation
from asr.core.data.labels import NO_LABELS, Labels
from asr.core.data.recordings import RecordingList
from asr.core.recognition.confidence import UNCALIBRATED
from asr.core.recognition.depths import places
from asr.core.recognition.model import Model
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError, reason_of, shown
from asr.interfaces import (
    Adapter,
    Decoder,
    Decoders,
    Encoder,
    Features,
    Head,
    Metric,
    OptimizerMaker,
    Prompt,
    Schedule,
    Tokenizer,
    TokenModel,
)

Config = Mapping[str, Any]

PROMPT = "prompt"  # section of a model's config, if it has a prompt
MODEL_KEYS = ("normalizer", "tokenizer", "features", "encoder", "head", "decode")  # sections of every model's config
BYTES_OF_ADAMW = 8  # per parameter, in float32: two moments
BYTES_TRAINED = 8 + BYTES_OF_ADAMW  # per parameter in training: also weight and gradient


def build_recognizer(
    config: Config, tokenizer: Tokenizer, features: Features, labels: Labels = NO_LABELS
) -> Recognizer:
    """Make a recogniser with new weights for a fitted tokenizer, fitted features and, for its prompt, fitted labels."""
    model = build_model(config, tokenizer, features, labels)
    return Recognizer(model, build_decoder(config, model), UNCALIBRATED)


def build_model(config: Config, tokenizer: Tokenizer, features: Features, labels: Labels = NO_LABELS) -> Model:
    """Make a model with new weights for a fitted tokenizer, fitted features and, for its prompt, fitted labels.

    Raises:
        InputError: a setting is invalid, or a streaming encoder is combined with features that need later frames.
    """
    encoder: Encoder = component("encoder", config["encoder"])(features.dim)
    if encoder.streaming is not None and not features.normalize.framewise:
        must = f"features.normalize must not need later frames for encoder={config['encoder']['name']}"
        given = config["features"].get("normalize", config["features"])["name"]
        raise InputError(f"{must}; {given} does. Take features/normalize=global_cmvn.")
    block_dims = {name: block.dim for name, block in encoder.named_blocks()}
    head = component("head", config["head"])(encoder.output_dim, block_dims, tokenizer.vocab_size)
    normalize = get_normalizer(config["normalizer"])
    model = Model(normalize, tokenizer, features, encoder, head, _prompt(config, encoder.output_dim, labels), labels)
    if "adapter" in config:
        build_adapter(config["adapter"]).insert(model)
    return model


def _prompt(config: Config, output_dim: int, labels: Labels) -> Prompt | None:
    """Make the prompt of a model; None if the config has none."""
    if PROMPT not in config:
        return None
    make = component(PROMPT, config[PROMPT])
    prompt: Prompt = make(output_dim, labels.last_id(make.keywords["label"]))
    return prompt


def decoders_of(head: Config) -> Decoders:
    """Return the names of the decoders of a head, given its section of the config.

    Raises:
        InputError: the head does not exist, a setting is invalid, or the head names no greedy decoder.
    """
    cls = component("head", head).func
    decoders = getattr(cls, "decoders", None)
    if not isinstance(decoders, Decoders) or not decoders.greedy:
        must = "a head must name at least one greedy decoder: decoders = Decoders(greedy=(...), beam=(...))"
        raise InputError(f"{must}; {cls.__name__}.decoders of head={head['name']} is {shown(decoders)}.")
    return decoders


def exported(model: Model, programs: Mapping[str, Path | bytes]) -> Model:
    """Make a model whose encoder and head are ONNX programs.

    Args:
        model: the model that was exported; its encoder and head need no weights.
        programs: ONNX files, or their contents, by file name.

    Raises:
        InputError: a program is damaged, or does not belong to the model.
    """
    opened: Any = find_class("program", "exported")(model.encoder, model.head, model.tokenizer.vocab_size, programs)
    made = Model(model.normalize, model.tokenizer, model.features, opened.encoder, opened.head)
    made.eval()
    return made


def build_adapter(config: Config) -> Adapter:
    """Make an adapter, which can be inserted into a trained model or merged into its weights."""
    adapter: Adapter = component("adapter", config)()
    return adapter


def build_decoder(config: Config, model: Model) -> Decoder:
    """Make the decoder of a model.

    Raises:
        InputError: the model's head lacks a part that the decoder needs, or a setting is invalid.
    """
    make = component("decode", config["decode"])
    check_needs(make, model.head, config)
    return _with_token_models(make, model.tokenizer, "decode")(model.head, model.tokenizer, model.normalize)


def _with_token_models(make: "partial[Any]", tokenizer: Tokenizer, where: str) -> "partial[Any]":
    """Load the neural language models named in the settings of a decoder and of its parts."""
    given: dict[str, Any] = {}
    for key, value in make.keywords.items():
        name = f"{where}.{key}"
        if isinstance(value, partial):
            given[key] = _with_token_models(value, tokenizer, name)
        elif key == "lm" and value is not None and is_token_model(Path(value)):
            given[key] = TokenHistories(load_token_model(value, tokenizer, name))
    return partial(make, **given)


def check_needs(decoder: "partial[Any]", head: Head, config: Config) -> None:
    """Check that a head has the parts that a decoder needs.

    Raises:
        InputError: a part is missing.
    """
    for need in decoder.func.needs:  # type: ignore[attr-defined]  # declared in interfaces.Decoder
        if getattr(head, need, None) is None:
            must = f"decode={config['decode']['name']} must have a head with a {need}"
            names = (*head.decoders.greedy, *head.decoders.beam)
            needs = {name: find_class("decode", name).needs for name in names}  # type: ignore[attr-defined]
            choices = [name for name in names if all(getattr(head, part, None) is not None for part in needs[name])]
            cure = (
                f"Choose decode={' or '.join(choices)}"
                if choices
                else "Name a decoder that it can serve in the head's `decoders`"
            )
            raise InputError(f"{must}; head={config['head']['name']} has none. {cure}.")


def build_tokenizer(config: Config) -> Tokenizer:
    """Make a tokenizer; the caller must `fit` or `load` it."""
    return component("tokenizer", config["tokenizer"])()


def build_features(config: Config) -> Features:
    """Make features; the caller must `fit` or `load` their normalisation."""
    return component("features", config["features"])()


def build_batched(features: Features) -> nn.Module:
    """Make the module that computes features of a batch of waveforms."""
    made: nn.Module = find_class("features/batched", "front_end")(features)
    return made


def build_labels(config: Config) -> Labels:
    """Make the labels that a prompt reads; the caller must `fit` or `load` their values."""
    return Labels([component(PROMPT, config[PROMPT]).keywords["label"]] if PROMPT in config else [])


def build_augmentation(config: Config, sample_rate: int) -> Augmentation:
    """Make the augmentations of training utterances, grouped by stage: plan (speed), waveform, features."""
    stages: dict[str, list[Any]] = {"plan": [], "waveform": [], "features": []}
    recordings: dict[str, RecordingList] = {}
    for name, make in several(config, "augment").items():
        stage: str = getattr(make.func, "stage", "")
        one_of(*stages).check(f"stage of asr/components/augment/{name}.py", stage)
        if "recordings" in make.keywords:
            setting = f"augment.{name}.recordings"
            recordings[setting] = RecordingList(make.keywords["recordings"], setting)
            make = partial(make, recordings=recordings[setting])
        stages[stage].append(make() if stage == "features" else make(sample_rate))
    if len(stages["plan"]) > 1:
        raise InputError(f"augment must have at most one change of speed; got {len(stages['plan'])}.")
    return Augmentation(next(iter(stages["plan"]), None), stages["waveform"], stages["features"], recordings)


def build_metrics(config: Config) -> dict[str, Metric]:
    """Make the metrics of validations, by name."""
    return {name: make() for name, make in several(config, "metric").items()}


def several(config: Config, key: str, group: str = "") -> dict[str, "partial[Any]"]:
    """Find the components of a section that may have any number of components; the section may be absent.

    Args:
        config: contains the section.
        key: key of the section, a mapping of names to settings.
        group: group of the components; by default `key`.
    """
    chosen = config.get(key) or {}
    if not isinstance(chosen, Mapping) or not all(isinstance(settings or {}, Mapping) for settings in chosen.values()):
        must = f"{key} must be a list of names, such as {key}=[NAME], or map them to settings"
        raise InputError(f"{must}; got {shown(chosen)}.")
    return {
        name: component(group or key, {"name": name, **(settings or {})}, f"{key}.{name}")
        for name, settings in chosen.items()
    }


def build_objective(config: Config) -> Any:
    """Make the objective of a training (`asr.core.training.objective.Objective`)."""
    return component("objective", config["objective"])()


def build_token_model(config: Config, vocab_size: int) -> TokenModel:
    """Make a neural language model with new weights."""
    return component("token_model", config)(vocab_size)


def load_token_model(path: str, tokenizer: Tokenizer, setting: str) -> TokenModel:
    """Load a neural language model.

    Args:
        path: path of a run folder, a bundle, or the model's file in a bundle.
        tokenizer: tokenizer of the recogniser; the language model must have its tokens.
        setting: name of the setting that contains the path, for errors.
    """
    stored = read_token_model(token_model_file(Path(path)))
    if stored.pieces != list(tokenizer.names):
        must = f"{setting} must be a language model over the recogniser's own {tokenizer.vocab_size} tokens"
        raise InputError(f"{must}; {path} has {len(stored.pieces)} other tokens. Train it with recognizer=MODEL.")
    with torch.device("meta"):
        model: Any = build_token_model(stored.settings, tokenizer.vocab_size)
    dtypes = {name: weight.dtype for name, weight in model.state_dict().items()}
    try:
        model.load_state_dict({name: w.to(dtypes.get(name)) for name, w in stored.weights.items()}, assign=True)
    except RuntimeError as error:  # names or shapes that do not fit the settings
        raise InputError(f"{path}: the weights must fit the settings; {reason_of(error)}.") from None
    frozen: TokenModel = model.eval().requires_grad_(False)
    return frozen


def build_schedule(config: Config) -> Schedule:
    """Make the learning-rate schedule."""
    return component("schedule", config["schedule"])()


def build_optimizer(config: Config, model: nn.Module, depths: Mapping[str, int]) -> torch.optim.Optimizer:
    """Make the optimizer of all parameters of a model that require a gradient.

    `depths` are `Model.depths`; {} for a network without encoder blocks.
    """
    make: OptimizerMaker = component("optimizer", config["optimizer"])()
    return make(_trained(model), places(model, depths))


def check_optimizer(config: Config, model: nn.Module, depths: Mapping[str, int]) -> None:
    """Check that the optimizer can train a model without memory for its weights, before a training begins.

    Raises:
        InputError: a setting is invalid, or the optimizer refuses the weights.
    """
    with _without_warnings(), suppress(RuntimeError):  # some of torch's optimizers need weights with memory
        build_optimizer(config, model, depths)


def optimizer_bytes(config: Config, model: nn.Module, depths: Mapping[str, int]) -> int:
    """Count the bytes of the optimizer's state, without memory for it; arguments as in `build_optimizer`.

    An optimizer whose step reads the values of tensors is assumed to have two moments, as AdamW.
    """
    make: OptimizerMaker = component("optimizer", config["optimizer"])()
    trained = _trained(model)
    with _without_warnings(), FakeTensorMode():  # `build_optimizer` warns
        fake = [(name, nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype))) for name, weight in trained]
        try:
            optimizer = make(fake, places(model, depths))
            for _, weight in fake:
                weight.grad = torch.empty_like(weight)
            optimizer.step()
        except RuntimeError:  # these tensors have no values
            return 2 * sum(weight.nbytes for _, weight in trained)
        values = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


@contextmanager
def _without_warnings() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]


def check_components(config: Config) -> None:
    """Check the settings of all components, and their combination, before a training begins.

    Nothing is fitted, and the model is built without memory for its weights.
    """
    tokenizer, features = build_tokenizer(config), build_features(config)
    decoders_of(config["head"])
    with torch.device("meta"):
        model = build_model(config, tokenizer, features, build_labels(config))
    check_needs(component("decode", config["decode"]), model.head, config)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    needed, available = num_parameters * BYTES_TRAINED, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:  # counting the state of large models takes seconds
        needed += optimizer_bytes(config, model, model.depths) - num_parameters * BYTES_OF_ADAMW
    if needed > available:
        must = "the model must fit into memory, with its gradients and the optimizer's state"
        given = f"{num_parameters:,} parameters need {needed / 2**30:.1f} GiB of {available / 2**30:.1f}"
        raise InputError(f"{must}; {given}. Lower encoder.dim or encoder.num_layers.")
    build_augmentation(config, features.sample_rate)
    build_metrics(config)
    check_training(config, model, model.depths)


def check_training(config: Config, model: nn.Module, depths: Mapping[str, int]) -> None:
    """Check the components with which every objective trains: callbacks, schedule and optimizer.

    Args:
        config: sections of the components.
        model: the model, without memory for its weights.
        depths: depths of weights by name.
    """
    several(config, "callback")
    build_schedule(config)
    check_optimizer(config, model, depths)


def component(group: str, config: Config, where: str = "") -> partial[Any]:
    """Find the class that a config names and bind its settings; the caller passes the positional arguments.

    `group` and `config["name"]` name the file `<group>/<name>.py` of asr, or of a plugin that the command names.
    The class is defined there and is named after the file, or after file and folder (head/predictor/gru.py:
    GRUPredictor). A setting that is itself a component's config, such as `norm: {name: layer_norm, ...}` in group
    `encoder`, is resolved in the group `encoder/block/norm` and bound as a callable.

    A bundle's config may come from an untrusted source: it can only name files in <group> of these packages.

    Args:
        group: group of the component.
        config: name and settings of the component.
        where: name of the setting for error messages; by default the group's name.

    Raises:
        InputError: the component does not exist, or its settings are missing, unknown or invalid.
    """
    where = where or group.replace("/", ".")
    if not isinstance(config, Mapping) or "name" not in config:
        raise InputError(f"{where} must be a mapping with the key `name`; got {shown(config)}.")
    cls = find_class(group, config["name"])
    settings = {key: value for key, value in config.items() if key != "name"}
    required = {p.name for p in inspect.signature(cls).parameters.values() if p.kind is p.KEYWORD_ONLY}
    if settings.keys() != required:
        missing, unknown = sorted(required - settings.keys()), sorted(settings.keys() - required)
        wrong = [f"{kind}: {', '.join(keys)}" for kind, keys in (("missing", missing), ("unknown", unknown)) if keys]
        must = f"{where} ({config['name']}) must set exactly {', '.join(sorted(required)) or 'nothing'}"
        cure = f" Remove it from the config by ~{where}.{unknown[0]}." if unknown else ""
        raise InputError(f"{must}; {'; '.join(wrong)}.{cure}")
    kinds = {key: f"{group}/{key}" for key, value in settings.items() if isinstance(value, Mapping)}
    kinds |= {
        key: f"{group}/{key}"
        for key in settings
        if any((home.of(group).folder / group / key).is_dir() for home in homes())
    }
    nested = {key: component(kind, settings[key]) for key, kind in kinds.items()}
    for key, rule in rules(cls).items():
        rule.check(f"{where}.{key}", settings[key])
    return partial(cls, **settings | nested)


def plugins_of(config: Config, groups: Iterable[str]) -> list[str]:
    """List the plugins whose components the sections of a config name; a config without these sections has none."""
    if not any_named():
        return []
    chosen = [component(group, config[group]) for group in groups if isinstance(config.get(group), Mapping)]
    return sorted({plugin for make in chosen for module in _modules(make) if (plugin := plugin_of(module))})


def _modules(make: "partial[Any]") -> Iterator[str]:
    """Yield the modules of a component and of its parts."""
    yield make.func.__module__
    for value in make.keywords.values():
        if isinstance(value, partial):
            yield from _modules(value)


def rules(cls: Callable[..., Any]) -> dict[str, Rule]:
    """Return the rules of a component's settings, by name; settings that contain another component have no rule."""
    parameters = inspect.signature(cls, eval_str=True).parameters.values()
    annotated = {parameter.name: get_args(parameter.annotation) for parameter in parameters}
    return {name: rule for name, marks in annotated.items() for rule in marks[1:] if isinstance(rule, Rule)}


def rules_of(group: str, name: object) -> dict[str, Rule]:
    """Return the rules of the settings of the component <group>/<name>.py."""
    return rules(find_class(group, name))


def find_class(group: str, name: object) -> Callable[..., Any]:
    """Return the class of the component <group>/<name>.py of asr or of a plugin."""
    dotted = group.replace("/", ".")
    parts = [*group.split("/"), name]
    safe = all(isinstance(part, str) and re.fullmatch(r"[a-z][a-z0-9_]{,99}", part) for part in parts)
    packages = [home.of(group) for home in homes()]
    places = [home for home in packages if safe and (home.folder / group / f"{name}.py").is_file()]
    if not places:
        files = (file for home in packages for file in (home.folder / group).glob("[a-z]*.py"))
        names = ", ".join(sorted(file.stem for file in files)) or "none"
        ours = f"{packages[0].package}.{dotted}".replace(".", "/")
        others = [home for home in packages[1:] if not home.is_ours or (home.folder / group).is_dir()]
        where = " or ".join([ours, *(f"{home.package}.{dotted}" for home in others)])
        raise InputError(f"{dotted}.name must be a file in {where} ({names}); got {shown(name)}.")
    if len(places) > 1:
        both = " and ".join(home.package for home in places)
        raise InputError(f"{dotted}.name must be in one package; {name} is in {both}. Rename the plugin's file.")
    module = importlib.import_module(f"{places[0].package}.{dotted}.{name}")
    stem, group_name = str(name).replace("_", ""), group.rpartition("/")[2].replace("_", "")
    for cls in vars(module).values():
        named_like_file = isinstance(cls, type) and cls.__name__.lower() in (stem, stem + group_name)
        if named_like_file and cls.__module__ == module.__name__:
            return cls
    file = module.__name__.replace(".", "/") + ".py"
    own = [name for name, cls in vars(module).items() if isinstance(cls, type) and cls.__module__ == module.__name__]
    wanted = "".join(word.capitalize() for word in str(name).split("_"))
    must = f"{dotted}.name must be a component; {file} must define class {wanted}"
    raise InputError(f"{must}, in any case of its letters; it defines {', '.join(own) or 'no class'}.")
