"""Checkpoints and bundles to recognisers, and checkpoints to bundles."""

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asr.build import MODEL_KEYS, Config, build_decoder, build_features, build_model, build_tokenizer
from asr.checkpoint.adapted import ADAPTER, BASE, check_whole, merged
from asr.checkpoint.address import hub_hint
from asr.checkpoint.bundle import (
    CONFIG,
    FIXED,
    Bundle,
    checked_config,
    is_exported,
    read_bundle,
    read_config,
    read_exported,
    replace_bundle,
    why_not_loaded,
    with_attached,
)
from asr.checkpoint.formats import FORMAT, KEY
from asr.checkpoint.saved import kept_checkpoints
from asr.errors import InputError, one_line
from asr.interfaces import Features, Tokenizer
from asr.recognition.confidence import load_calibration
from asr.recognition.model import Model
from asr.recognition.recognizer import Recognizer
from asr.settings.conf import default_settings

logger = logging.getLogger(__name__)

BUNDLE = "bundle"  # its folder in a run folder
CHECKPOINTS = "checkpoints"
CHECKPOINT_KEY = "asr"  # of a Lightning checkpoint: the rest of what a bundle holds
PREFIX = "model."  # of its weights
PRIOR_BEAM = "prior_beam"  # the decoder that subtracts label priors
RESCORER = "lm_rescoring"  # the decoder that puts the hypotheses of another one in order
RESCORING = ("language_model", "rescoring_weight", "token_insertion_bonus")  # its settings


def load_recognizer(
    path: str | Path,
    device: str | torch.device = "cpu",
    decode: Mapping[str, Any] | None = None,
    base: Path | None = None,
) -> Recognizer:
    """Load a recogniser, ready to recognise.

    Args:
        path: of a run folder, a bundle, a `.ckpt`, or the folder of an exported model.
        device: where to put the weights.
        decode: settings of the decoder to use instead of the model's, `{"name": "beam", "fusion": {"lm": "a.arpa"}}`,
            say; only the settings, and it is the model's own, or the beam beside that. Of a decoder that is not the
            model's own, the others are those of conf/decode.
        base: the model that an adapter is of.

    Raises:
        InputError: there is no such model, or it is damaged, or it asks for what is not ours to build.
    """
    path = Path(path)
    bundle = read_model(path, base)
    settings = decoder_settings(bundle, decode or {})
    return bundle_recognizer(replace(bundle, config=bundle.config | {"decode": settings}), path, device)


def read_model(path: Path, base: Path | None = None) -> Bundle:
    """Read what a recogniser is made of, from any of the forms of a model that lie on a disk.

    Args:
        path: of the model.
        base: the model that an adapter is of; both are merged.

    Raises:
        InputError: there is no such model, or it is damaged, or it is an adapter of another base, or of none.
    """
    if base is None:
        return check_whole(_read_stored(path), path)
    return merged(_read_stored(path), path, read_model(base), base)


def _read_stored(path: Path) -> Bundle:
    if path.suffix == ".ckpt":
        return _without_files(checkpoint_bundle(path), path)
    folder = bundle_folder(path)
    return read_exported(folder) if is_exported(folder) else read_bundle(folder)


def read_settings(path: Path) -> Config:
    """Read the config that a model has, and not its weights.

    Raises:
        InputError: there is no such model, or it is damaged.
    """
    return checkpoint_bundle(path).config if path.suffix == ".ckpt" else read_config(bundle_folder(path))


def bundle_recognizer(bundle: Bundle, path: Path, device: str | torch.device = "cpu") -> Recognizer:
    """Make the recogniser that a bundle is of.

    Args:
        bundle: what it is made of.
        path: where that was read, for errors.
        device: where to put the weights.

    Raises:
        InputError: it is damaged, or of an adapter alone, or asks for what is not ours to build.
    """
    check_whole(bundle, path)
    try:
        tokenizer, features = build_tokenizer(bundle.config), build_features(bundle.config)
        tokenizer.load(bundle.files)
        features.normalize.load(bundle.files)
        features(torch.zeros(features.sample_rate))  # statistics of another number of bins are a RuntimeError
        with torch.device("meta"):  # no memory for a net of which the weights know nothing
            model = build_model(bundle.config, tokenizer, features)
        if not bundle.programs:
            _check_variances(bundle.weights, path)
            _load_weights(model, bundle.weights)
        else:
            from asr.onnx.exported import exported

            model = exported(model, bundle.programs)
        decode = build_decoder(bundle.config, model)
        calibration = load_calibration(bundle.files)
    except KeyError as error:
        raise InputError(f"{path}: a model must hold {error.args[0]}; it is not there.") from None
    except TypeError as error:  # a setting of another type than its component computes with
        raise InputError(f"{path}: a model's settings must fit its components; {one_line(error)}") from None
    except RuntimeError as error:  # load_state_dict: names or shapes that do not fit the config
        raise InputError(f"{path}: the weights must fit the config; {one_line(error)}") from None
    return Recognizer(model.eval(), decode, calibration).to(device)


def _check_variances(weights: Mapping[str, Tensor], path: Path) -> None:
    """Check that no norm would take the root of a negative number.

    Raises:
        InputError: one would, and give NaN.
    """
    for name, weight in weights.items():
        if name.endswith(".running_var") and bool((weight < 0).any()):
            raise InputError(f"{path}: {name} must hold variances, at least 0; its least is {float(weight.min()):g}.")


def _load_weights(model: Model, weights: Mapping[str, Tensor]) -> None:
    """Give a model, which has no memory for them yet, its weights."""
    dtypes = {name: weight.dtype for name, weight in model.state_dict().items()}
    copies = {name: weight.to(dtypes.get(name), copy=True) for name, weight in weights.items()}
    model.load_state_dict(copies, assign=True)


def decoder_settings(bundle: Bundle, instead: Mapping[str, Any]) -> dict[str, Any]:
    """Take the model's settings of its decoder, or conf's if it is to be another one, with those given instead.

    Settings without a name are of the model's decoder; what a greedy one has no setting for is for the beam search
    beside it.
    """
    return _settings_instead(bundle.config["decode"], instead)


def _settings_instead(own: Mapping[str, Any], instead: Mapping[str, Any]) -> dict[str, Any]:
    rescoring = {key: value for key, value in instead.items() if key in RESCORING}
    if (rescoring or "name" in instead) and "first" not in own and instead.get("name", RESCORER) == RESCORER:
        others = {key: value for key, value in instead.items() if key not in ("name", "first", *rescoring)}
        first = instead.get("first") or {"name": str(own.get("name")).replace("greedy", "beam")}
        search = _settings_instead(own, {**others, **first})  # the model's own, with another pass behind it
        return {**default_settings("decode", RESCORER), **rescoring, "first": search}
    name = own.get("name")
    if "first" not in own and instead.keys() - own.keys() and isinstance(name, str):
        name = name.replace("greedy", "beam")
    name = instead.get("name", name)
    settings = own if name == own.get("name") else default_settings("decode", name)
    given = {key: value for key, value in instead.items() if key in settings or "first" not in settings}
    parts = {key: settings[key] | part for key, part in given.items() if isinstance(part, Mapping) and key in settings}
    merged = {**settings, **given, **parts}
    if of_first := {key: value for key, value in instead.items() if key not in given}:
        merged["first"] = _settings_instead(settings["first"], of_first)
    return merged


def with_label_priors(
    instead: Mapping[str, Any], label_priors: Sequence[float], own: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings, for `decoder_settings`, of the beam that subtracts label priors.

    Args:
        instead: other settings that were given.
        label_priors: log p of each token.
        own: the settings of the model's decoder.

    Raises:
        InputError: another search than the beam is asked for.
    """
    name, others = instead.get("name"), {key: value for key, value in instead.items() if key != "name"}
    if name not in (None, "beam", PRIOR_BEAM, RESCORER):
        raise InputError(f"--label-priors must go with the beam search; got --decode {name}. Leave that out.")
    search = {"name": PRIOR_BEAM, "label_priors": list(label_priors), "prior_weight": 0.0}
    if name == RESCORER or "first" in own or others.keys() & set(RESCORING):
        return {**others, **({"name": name} if name else {}), "first": search}
    return others | search


def with_values(settings: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, Any]:
    """Return a decoder's settings with values of what it can tune: its own, and those of its first pass and fusion."""
    own = {key: value for key, value in values.items() if key in settings}
    of_fusion = {key: value for key, value in values.items() if key not in settings}
    if "first" in settings:
        return {**settings, **own, "first": with_values(settings["first"], of_fusion)}
    return {**settings, **own, **({"fusion": settings["fusion"] | of_fusion} if of_fusion else {})}


def model_config(config: Config) -> dict[str, Any]:
    """Take the part of a training config that a bundle holds: never the corpus, nor anything to run."""
    return {key: config[key] for key in MODEL_KEYS}


def fitted_files(tokenizer: Tokenizer, features: Features) -> dict[str, bytes]:
    """Collect what tokenizer and features learnt."""
    return tokenizer.files() | features.normalize.files()


def checkpoint_extra(
    config: Config, files: Mapping[str, bytes], keys: Sequence[str] = MODEL_KEYS, base: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Prepare what a Lightning checkpoint keeps under `CHECKPOINT_KEY`, as types that `weights_only` loads.

    Args:
        config: of the training.
        files: that were learnt, by name.
        keys: of the config, which a bundle holds.
        base: of the adapter that the config has, as `base_config` names it.
    """
    adapter = {} if base is None else {ADAPTER: config[ADAPTER], BASE: dict(base)}
    return {
        "config": {KEY: FORMAT, **{key: config[key] for key in keys}, **adapter},
        "files": {name: _to_tensor(content) for name, content in files.items()},
    }


class Start(NamedTuple):
    """A model that a run started from and that is mixed into what it learnt, which forgets less then.

    *Source*: Wortsman et al. 2021, arXiv:2109.01903.

    Args:
        source: as `init.from` names it.
        path: where it lies.
        share: of it in each weight, more than 0, less than 1.
    """

    source: str
    path: Path
    share: float


def write_bundle(
    folder: str | Path,
    checkpoints: Sequence[Path],
    card: str,
    decode: Mapping[str, Any] | None = None,
    start: Start | None = None,
) -> None:
    """Write the bundle of a checkpoint, or of the mean of several; an older one is replaced as a whole.

    Args:
        folder: where.
        checkpoints: Lightning checkpoints of one run.
        card: text of the model card.
        decode: settings of the decoder, whose files go into the bundle; None: the checkpoint's, without files.
        start: what is mixed in.

    Raises:
        InputError: a checkpoint or `start` cannot be read, or has other weights than the first, or other tokens; or
            `replace_bundle` cannot.
    """
    bundles = [checkpoint_bundle(checkpoint) for checkpoint in checkpoints]
    check_same_weights(checkpoints, bundles)
    first, *_ = bundles
    weights, shares = [bundle.weights for bundle in bundles], [1.0] * len(bundles)
    if start is not None:
        weights.append(_read_start(start.path, checkpoints[0], first))
        shares.append(len(bundles) * start.share / (1 - start.share))
    if decode is None:
        first = _without_files(first, checkpoints[0])
    else:
        first = replace(first, config=first.config | {"decode": dict(decode)})
    replace_bundle(Path(folder), replace(first, weights=average(weights, shares), card=card))


def average(weights: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """Average weights by name, each with its share of the sum of shares, in float64 and back; of one, its own."""
    if len(weights) == 1:
        return dict(weights[0])
    pairs = list(zip(shares, weights, strict=True))
    return {
        name: torch.stack([share * each[name].double() for share, each in pairs])
        .sum(dim=0)
        .div(sum(shares))
        .to(first.dtype)
        for name, first in weights[0].items()
    }


def _read_start(source: Path, checkpoint: Path, trained: Bundle) -> dict[str, Tensor]:
    """Read the weights of what a run started from.

    Raises:
        InputError: they are none of such a run.
    """
    start = read_model(source)
    check_same_weights([checkpoint, source], [trained, start])
    if _pieces(trained) != _pieces(start):
        must = f"{source}: must have the same tokens as {checkpoint}, to be averaged with it"
        raise InputError(f"{must}; it has others. Give what init.from was.")
    return start.weights


def _pieces(bundle: Bundle) -> list[str]:
    tokenizer = build_tokenizer(bundle.config)
    tokenizer.load(bundle.files)
    return list(tokenizer.pieces)


def check_same_weights(checkpoints: Sequence[Path], bundles: Sequence[Bundle]) -> None:
    """Check that what is to be averaged has the same names, shapes and types."""
    expected, *others = ({name: _describe(weight) for name, weight in bundle.weights.items()} for bundle in bundles)
    for path, actual in zip(checkpoints[1:], others, strict=True):
        for name in [*expected, *actual]:
            if expected.get(name) != actual.get(name):
                must = f"{path}: must have the same weights as {checkpoints[0]}, to be averaged with it"
                here, there = actual.get(name, "missing"), expected.get(name, "missing")
                raise InputError(f"{must}; {name} is {here} here and {there} there.")


def _describe(weight: Tensor) -> str:
    return f"{tuple(weight.shape)} {str(weight.dtype).removeprefix('torch.')}"


def bundle_folder(path: Path) -> Path:
    """Find the bundle that a path means: itself, or the one in a run folder."""
    if path.suffix == ".nemo":
        raise InputError(f"{path}: a model must be converted first: python -m asr.convert {path} -o FOLDER")
    if not path.is_dir():
        if path.suffix == ".ckpt" and path.is_file():
            made = f"python -m asr.average {path} --output-dir FOLDER"
            raise InputError(f"{path}: a model must be a run folder or a bundle here; this is a checkpoint. {made}")
        what = "is not a folder" if path.exists() else "does not exist"
        raise InputError(f"{path}: a model must be a run folder, a bundle or a .ckpt; it {what}.{hub_hint(path)}")
    for folder in (path, path / BUNDLE):
        if (folder / CONFIG).is_file():
            return folder
    unfinished = kept_checkpoints(path / CHECKPOINTS)
    if unfinished:
        what = "there is no bundle: training has not ended, or it was moved; give a checkpoint"
        raise InputError(f"{path}: {what}: {unfinished[-1].path}")
    raise InputError(f"{path}: a model folder must hold {CONFIG} or {BUNDLE}/{CONFIG}; it holds neither.")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a Lightning checkpoint as plain types and tensors, which lie in the file until they are used.

    Raises:
        InputError: it is not there, or damaged, or holds what could run code.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise InputError(f"{path}: no such checkpoint.") from None
    except Exception as error:  # whatever torch stumbles over, nearly any kind there is, the file is at fault
        must = f"{path}: must be a checkpoint that can be loaded without running code"
        raise InputError(f"{must}; {why_not_loaded(error)}.") from None
    return checkpoint if isinstance(checkpoint, dict) else {}


def checkpoint_bundle(path: Path, check: Callable[[Any, Path], dict[str, Any]] = checked_config) -> Bundle:
    """Read what a bundle is made of from a Lightning checkpoint.

    Args:
        path: of the checkpoint.
        check: returns its config in today's format; raises InputError if it is none of the kind.

    Raises:
        InputError: it cannot be read, or is not from `asr.train`, or names a file that does not belong in a bundle.
    """
    checkpoint = read_checkpoint(path)
    extra = checkpoint.get(CHECKPOINT_KEY)
    if extra is None:
        raise InputError(
            f"{path}: a checkpoint must hold config, tokenizer and normaliser; this one is not from asr.train."
        )
    try:
        state = checkpoint["state_dict"]
        weights = {name.removeprefix(PREFIX): weight for name, weight in state.items() if name.startswith(PREFIX)}
        files = {name: bytes(content.numpy()) for name, content in extra["files"].items()}
        config = json.loads(json.dumps(extra["config"]))
    except (KeyError, AttributeError, TypeError, ValueError, RuntimeError, RecursionError) as error:
        raise InputError(f"{path}: the checkpoint is damaged: {type(error).__name__}: {one_line(error)}") from None
    for name in files:  # which may come from a stranger, and is going to be written to
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name, re.ASCII) or name in FIXED:
            raise InputError(f"{path}: a learnt file must have a plain name; got {name!r}.")
    if not weights or not all(isinstance(weight, Tensor) for weight in weights.values()):
        raise InputError(f"{path}: the checkpoint is damaged: its weights must be tensors, and there must be some.")
    return Bundle(check(config, path), files, weights, card="")


def _without_files(bundle: Bundle, checkpoint: Path) -> Bundle:
    """Take a checkpoint's decoder without the files it read: paths of where it was trained, if not of a stranger's."""
    files = bundle.attached
    if not files:
        return bundle
    named = ", ".join(f"{key}={path}" for key, path in files.items())
    logger.warning("%s: its decoder goes without %s; give what it is to have", checkpoint, named)
    return replace(bundle, config=with_attached(bundle.config, dict.fromkeys(files)))


def _to_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
