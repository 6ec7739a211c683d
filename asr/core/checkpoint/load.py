"""Load recognisers from checkpoints and bundles; make bundles from checkpoints."""

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.core.build import (
    MODEL_KEYS,
    PROMPT,
    Config,
    build_decoder,
    build_features,
    build_labels,
    build_model,
    build_tokenizer,
    exported,
)
from asr.core.checkpoint.adapted import ADAPTER, BASE, check_own, check_whole, is_adapter, merged, with_share
from asr.core.checkpoint.address import hub_hint
from asr.core.checkpoint.averaging import average, token_names, with_share_of
from asr.core.checkpoint.bundle import (
    CONFIG,
    FIXED,
    Bundle,
    checked_config,
    is_encoder,
    is_exported,
    read_bundle,
    read_config,
    read_exported,
    recorded_plugins,
    replace_bundle,
    why_not_loaded,
    with_attached,
)
from asr.core.checkpoint.formats import FORMAT, KEY
from asr.core.checkpoint.saved import CHECKPOINTS, kept_checkpoints
from asr.core.data.labels import NO_LABELS, Labels
from asr.core.decoder_choice import with_decoder
from asr.core.recognition.confidence import load_calibration
from asr.core.recognition.letter_lock import lock
from asr.core.recognition.model import Model
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError, reason_of, shown
from asr.interfaces import Features, Tokenizer

logger = logging.getLogger(__name__)

BUNDLE = "bundle"  # name of the bundle's folder in a run folder
NEMO_CONFIG = "model_config.yaml"  # name of the config in the folder of an unpacked .nemo archive
CHECKPOINT_KEY = "asr"  # key of the entry in a Lightning checkpoint that stores everything in a bundle except weights
PREFIX = "model."  # prefix of the names of weights in a Lightning checkpoint


def load_recognizer(
    path: str | Path,
    device: str | torch.device = "cpu",
    decode: str | Mapping[str, Any] | None = None,
    base: Path | None = None,
    characters: str | None = None,
) -> Recognizer:
    """Load a recogniser.

    Args:
        path: path of a run folder, a bundle, a `.ckpt`, or the folder of an exported model.
        device: device of the weights.
        decode: another decoder, or settings of the decoder, as in `with_decoder`.
        base: path of an adapter's base.
        characters: language or script whose letters alone are written (`asr.core.recognition.letter_lock`); None: all.

    Raises:
        InputError: the model does not exist, is damaged, or names components that asr does not have; or there are no
            such letters, or the model cannot write them.
    """
    path = Path(path)
    bundle = read_model(path, base)
    return bundle_recognizer(replace(bundle, config=with_decoder(bundle.config, decode)), path, device, characters)


def read_model(path: Path, base: Path | None = None) -> Bundle:
    """Read a recogniser from a run folder, a bundle, a checkpoint or an exported model.

    Args:
        path: path of the model.
        base: path of an adapter's base, into which the adapter is merged.

    Raises:
        InputError: the model does not exist or is damaged, it is an encoder without a head, or it is an adapter and
            `base` is missing or wrong.
    """
    if base is not None:
        adapter = _read_stored(path)
        whole = merged(adapter, path, read_model(base), base)
        with _naming_faults(path):
            check_own(adapter.weights, _build(adapter), path)
        return whole
    return check_recognises(read_initial(path), path)


def check_recognises(bundle: Bundle, path: Path) -> Bundle:
    """Return the bundle if it is a recogniser."""
    if is_encoder(bundle.config):
        must = f"{path}: a model must recognise speech; this is an encoder without a head"
        raise InputError(f"{must}. Train a recogniser from it: python -m asr.train init.from={path}")
    return bundle


def read_initial(path: Path) -> Bundle:
    """Read a model from which a training starts: a recogniser, or an encoder without a head."""
    return check_whole(_read_stored(path), path)


def stored_at(path: Path) -> Path:
    """Return the file or folder that contains a model: the checkpoint, or the bundle's folder."""
    return path if path.suffix == ".ckpt" else bundle_folder(path)


def _read_stored(path: Path) -> Bundle:
    folder = stored_at(path)
    if folder.suffix == ".ckpt":
        return _without_files(checkpoint_bundle(path), path)
    return read_exported(folder) if is_exported(folder) else read_bundle(folder)


def read_settings(path: Path) -> Config:
    """Read only the config of a model.

    Raises:
        InputError: the model does not exist or is damaged.
    """
    return checkpoint_bundle(path).config if path.suffix == ".ckpt" else read_config(bundle_folder(path))


def bundle_recognizer(
    bundle: Bundle, path: Path, device: str | torch.device = "cpu", characters: str | None = None
) -> Recognizer:
    """Make the recogniser of a bundle.

    Args:
        bundle: contents of the bundle.
        path: path of the bundle, for errors.
        device: device of the weights.
        characters: as in `load_recognizer`.

    Raises:
        InputError: the bundle is damaged, is an adapter or an encoder without a head, or names components that asr does
            not have; or the model cannot write the characters.
    """
    check_recognises(check_whole(bundle, path), path)
    with _naming_faults(path):
        model = _build(bundle)
        if not bundle.programs:
            _check_variances(bundle.weights, path)
            _load_weights(model, bundle.weights)
        else:
            model = exported(model, bundle.programs)
        if characters is not None:
            lock(model.head, model.tokenizer, characters)
        decode = build_decoder(bundle.config, model)
        calibration = load_calibration(bundle.files)
    return Recognizer(model.eval(), decode, calibration).to(device)


def _build(bundle: Bundle) -> Model:
    """Make the model of a bundle, of an adapter as well, on the device "meta": nothing is allocated for its weights."""
    tokenizer, features = build_tokenizer(bundle.config), build_features(bundle.config)
    labels = build_labels(bundle.config)
    for fitted in (tokenizer, features.normalize, labels):
        fitted.load(bundle.files)
    features(torch.zeros(features.sample_rate))  # RuntimeError if statistics have a different number of bins
    with torch.device("meta"):
        return build_model(bundle.config, tokenizer, features, labels)


@contextmanager
def _naming_faults(path: Path) -> Iterator[None]:
    """Convert errors that a damaged bundle causes to an InputError that names the bundle."""
    try:
        yield
    except KeyError as error:
        raise InputError(f"{path}: a model must contain {error.args[0]}; it does not.") from None
    except TypeError as error:  # a setting does not have the type that its component needs
        raise InputError(f"{path}: a model's settings must fit its components; {reason_of(error)}.") from None
    except RuntimeError as error:  # names or shapes of weights do not fit the config (load_state_dict)
        raise InputError(f"{path}: the weights must fit the config; {reason_of(error)}.") from None


def _check_variances(weights: Mapping[str, Tensor], path: Path) -> None:
    """Check that running variances are not negative, which would give NaN."""
    for name, weight in weights.items():
        if name.endswith(".running_var") and bool((weight < 0).any()):
            raise InputError(f"{path}: {name} must be variances of at least 0; the minimum is {float(weight.min()):g}.")


def _load_weights(model: Model, weights: Mapping[str, Tensor]) -> None:
    """Assign weights to a model that was built on the device "meta"."""
    dtypes = {name: weight.dtype for name, weight in model.state_dict().items()}
    copies = {name: weight.to(dtypes.get(name), copy=True) for name, weight in weights.items()}
    model.load_state_dict(copies, assign=True)


def model_config(config: Config) -> dict[str, Any]:
    """Return the sections of a training config that a bundle contains."""
    return _sections(config, MODEL_KEYS)


def _sections(config: Config, keys: Sequence[str]) -> dict[str, Any]:
    """Return the sections with these keys and, if there is one, the prompt's."""
    return {key: config[key] for key in (*keys, *([PROMPT] if PROMPT in config else []))}


def fitted_files(tokenizer: Tokenizer, features: Features, labels: Labels = NO_LABELS) -> dict[str, bytes]:
    """Return the files of the fitted tokenizer, features and labels."""
    return tokenizer.files() | features.normalize.files() | labels.files()


def checkpoint_extra(
    config: Config, files: Mapping[str, bytes], keys: Sequence[str] = MODEL_KEYS, base: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the value of `CHECKPOINT_KEY` in a Lightning checkpoint, with types that `weights_only` can load.

    Args:
        config: config of the training run.
        files: files of fitted components, by name.
        keys: keys of the config that are stored.
        base: result of `base_config` for an adapter; None: the model is not an adapter.
    """
    adapter = {} if base is None else {ADAPTER: config[ADAPTER], BASE: dict(base)}
    stored = _sections(config, keys) | adapter
    return {
        "config": {KEY: FORMAT, **recorded_plugins(stored), **stored},
        "files": {name: _to_tensor(content) for name, content in files.items()},
    }


def write_bundle(
    folder: str | Path,
    checkpoints: Sequence[Path],
    card: str,
    decode: Mapping[str, Any] | None = None,
    start: Bundle | None = None,
    share: float = 0.0,
) -> None:
    """Write a bundle of one checkpoint or of the average of several, atomically replacing an older bundle.

    Args:
        folder: folder of the bundle.
        checkpoints: Lightning checkpoints of one run.
        card: text of the model card.
        decode: settings of the decoder; files that they name are copied to the bundle. None: the checkpoint's settings,
            without files.
        start: the initial model of the run; None: random weights.
        share: share of the initial model in each weight, which reduces forgetting, from 0 to less than 1; an adapter
            is merged with this share of its base.
    """
    bundles = [checkpoint_bundle(checkpoint) for checkpoint in checkpoints]
    check_same_weights(checkpoints, bundles)
    first, *_ = bundles
    if decode is None:
        first = _without_files(first, checkpoints[0])
    else:
        first = replace(first, config=first.config | {"decode": dict(decode)})
    bundle = replace(first, weights=average([each.weights for each in bundles], [1.0] * len(bundles)), card=card)
    if start is not None and share:
        if is_adapter(bundle.config):
            bundle = with_share(bundle, share)
        else:
            bundle = replace(bundle, weights=with_share_of(start, bundle, share))
    replace_bundle(Path(folder), bundle)


def read_start(source: Path, checkpoint: Path) -> Bundle:
    """Read the initial model of a run; `checkpoint` is one of the run's checkpoints, which must be whole models."""
    trained = checkpoint_bundle(checkpoint)
    if is_adapter(trained.config):
        must = "checkpoints that are averaged with --start must be whole models"
        cure = "Leave out --start; asr.merge --share averages an adapter with its base."
        raise InputError(f"{must}; {checkpoint} is an adapter. {cure}")
    start = read_model(source)
    check_same_weights([checkpoint, source], [trained, start])
    if token_names(trained) != token_names(start):
        must = f"{source}: must have the tokens of {checkpoint} to be averaged with it"
        raise InputError(f"{must}; its tokens differ. Give the model of the run's init.from.")
    return start


def check_same_weights(checkpoints: Sequence[Path], bundles: Sequence[Bundle]) -> None:
    """Check that weights to be averaged have the same names, shapes and types."""
    expected, *others = ({name: _describe(weight) for name, weight in bundle.weights.items()} for bundle in bundles)
    for path, actual in zip(checkpoints[1:], others, strict=True):
        for name in [*expected, *actual]:
            if expected.get(name) != actual.get(name):
                must = f"{path}: must have weights of the shapes of {checkpoints[0]} to be averaged with it"
                own, other = actual.get(name, "missing"), expected.get(name, "missing")
                raise InputError(f"{must}; {name} is {own}, but {other} in the first checkpoint.")


def _describe(weight: Tensor) -> str:
    return f"{tuple(weight.shape)} {str(weight.dtype).removeprefix('torch.')}"


def is_nemo(path: Path) -> bool:
    """Return whether a path is a model of NeMo: an archive, or a folder of its files."""
    return path.suffix == ".nemo" or (path / NEMO_CONFIG).is_file()


def bundle_folder(path: Path) -> Path:
    """Return the folder of a bundle: the path itself, or, if it is a run folder, the bundle's folder in it."""
    if is_nemo(path):
        raise InputError(f"{path}: a model must be converted first: python -m asr.convert {path} -o FOLDER")
    if not path.is_dir():
        if path.suffix == ".ckpt" and path.is_file():
            made = f"python -m asr.average {path} --output-dir FOLDER"
            raise InputError(f"{path}: a model must be a run folder or a bundle here; this is a checkpoint. {made}")
        problem = "is not a folder" if path.exists() else "does not exist"
        raise InputError(f"{path}: a model must be a run folder, a bundle or a .ckpt; it {problem}.{hub_hint(path)}")
    for folder in (path, path / BUNDLE):
        if (folder / CONFIG).is_file():
            return folder
    unfinished = kept_checkpoints(path / CHECKPOINTS)
    if unfinished:
        problem = "there is no bundle, because training has not ended or the bundle was moved; give a checkpoint"
        raise InputError(f"{path}: {problem}: {unfinished[-1].path}")
    raise InputError(f"{path}: a model folder must have {CONFIG} or {BUNDLE}/{CONFIG}; it has neither.")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a Lightning checkpoint, which may contain only plain types and tensors; tensors are memory-mapped."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise InputError(f"{path}: no such checkpoint.") from None
    except Exception as error:  # a damaged file causes nearly any kind of error in torch
        must = f"{path}: must be a checkpoint that can be loaded without running code"
        raise InputError(f"{must}; {why_not_loaded(error)}.") from None
    return checkpoint if isinstance(checkpoint, dict) else {}


def checkpoint_bundle(path: Path, check: Callable[[Any, Path], dict[str, Any]] = checked_config) -> Bundle:
    """Read a Lightning checkpoint, and return its contents as a bundle.

    Args:
        path: path of the checkpoint.
        check: returns the config in the current format, or raises InputError for another kind of model.
    """
    checkpoint = read_checkpoint(path)
    extra = checkpoint.get(CHECKPOINT_KEY)
    if extra is None:
        raise InputError(
            f"{path}: a checkpoint must contain config, tokenizer and normaliser; this one is not from asr.train."
        )
    try:
        state = checkpoint["state_dict"]
        weights = {name.removeprefix(PREFIX): weight for name, weight in state.items() if name.startswith(PREFIX)}
        files = {name: bytes(content.numpy()) for name, content in extra["files"].items()}
        config = json.loads(json.dumps(extra["config"]))
    except (KeyError, AttributeError, TypeError, ValueError, RuntimeError, RecursionError) as error:
        raise InputError(f"{path}: the checkpoint is damaged: {type(error).__name__}: {reason_of(error)}.") from None
    for name in files:  # an untrusted name; a file of this name will be written
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name, re.ASCII) or name in FIXED:
            raise InputError(f"{path}: files in a checkpoint must have plain names; got {shown(name)}.")
    if not weights or not all(isinstance(weight, Tensor) for weight in weights.values()):
        raise InputError(f"{path}: the checkpoint is damaged: it must have weights, and all must be tensors.")
    return Bundle(check(config, path), files, weights, card="")


def _without_files(bundle: Bundle, checkpoint: Path) -> Bundle:
    """Remove the decoder's files from its settings; the paths may be from another machine or an untrusted author."""
    files = bundle.attached
    if not files:
        return bundle
    named = ", ".join(f"{key}={path}" for key, path in files.items())
    logger.warning("%s: its decoder is used without %s; give these files if the decoder needs them", checkpoint, named)
    return replace(bundle, config=with_attached(bundle.config, dict.fromkeys(files)))


def _to_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
