"""Bundles: a trained recogniser as a folder.

A bundle contains weights.safetensors, config.json (the model's part of the config), the files of the fitted tokenizer,
features and confidence, the files that its decoder reads, and README.md, the model card. It contains no code. Bundles
of equal models have equal bytes.
"""

import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from asr.base.language_model.arpa import HEAD_BYTES, is_arpa
from asr.base.language_model.stored import is_token_model, read_token_model, token_model_file
from asr.base.onnx.names import DATA_FILES, NETS, ONNX, OPENED
from asr.base.settings import plugins
from asr.base.system.files import UNFINISHED, real, sync_folder
from asr.base.system.learnt import MAX_BYTES, parse_json
from asr.core.build import MODEL_KEYS, PROMPT, plugins_of
from asr.core.checkpoint.formats import FORMAT, KEY, RESCORING_MODEL, of_today
from asr.errors import InputError, one_line, reason_of, shown

WEIGHTS, CONFIG, CARD = "weights.safetensors", "config.json", "README.md"
ENCODER_KEYS = ("features", "encoder")  # sections of the config of an encoder without a head
FIXED = (WEIGHTS, CONFIG, CARD)  # names of the files in every bundle
OF_A_BUNDLE = (WEIGHTS, CONFIG)
OF_FILES = (".nemo", ".ckpt")  # suffixes of models that are files; a folder with such a suffix cannot be loaded
ATTACHED = {  # names of files in a bundle, by the setting of decode.fusion that gives the file
    "lm": "lm.arpa",
    "spelling": "spelling.arpa",
    "lexicon": "lexicon.txt",
    "hotwords": "hotwords.txt",
}
NEURAL_LM = "lm.safetensors"  # name used instead of ATTACHED["lm"] for a neural language model
ATTACHED_NAMES = (*ATTACHED.values(), NEURAL_LM, RESCORING_MODEL)
UNBOUNDED = (
    WEIGHTS,
    ATTACHED["lm"],
    ATTACHED["spelling"],
    ATTACHED["lexicon"],
    NEURAL_LM,
    RESCORING_MODEL,
    *DATA_FILES,
)  # files whose size is not limited; their contents are checked when they are read
REPLACED = ".replaced"  # suffix of an older bundle's name while it is being replaced


@dataclass(frozen=True)
class Bundle:
    """The contents of a recogniser's bundle.

    Args:
        config: the model's part of a training config, with the paths of the files that its decoder reads.
        files: contents of the files of fitted components, by the file's name.
        weights: weights, by name.
        card: text of the model card.
        programs: paths of the ONNX files and of their data files, by name; only an exported model has them, instead of
            weights.
    """

    config: dict[str, Any]
    files: dict[str, bytes]
    weights: dict[str, Tensor]
    card: str
    programs: dict[str, Path] = field(default_factory=dict)

    @property
    def attached(self) -> dict[str, Path]:
        """The files that the decoder reads, by the name of the setting."""
        settings = {key: path for key, path in fusion(self.config).items() if key in ATTACHED}
        paths = {key: Path(path) for key, path in settings.items() if path is not None}
        return {key: token_model_file(path) if _is_neural(key, path) else path for key, path in paths.items()}

    @property
    def names(self) -> set[str]:
        """Names of the files in the bundle's folder."""
        attached = {attached_name(key, path) for key, path in self.attached.items()}
        return {*FIXED, RESCORING_MODEL, *self.files, *attached}


def read_bundle(folder: Path) -> Bundle:
    """Read the bundle of a whole model or of an adapter.

    Raises:
        InputError: the bundle is damaged, names files outside of it, or is an exported model.
    """
    if is_exported(folder):
        must = f"{folder}: a model exported to ONNX can only recognise speech"
        raise InputError(f"{must}. Give the bundle from which it was exported.")
    config = read_config(folder)
    try:
        weights = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{folder}: the bundle is damaged: {reason_of(error)}.") from None
    files, card = _read_texts(folder)
    return Bundle(config, files, weights, card)


def is_exported(folder: Path) -> bool:
    """Return whether a folder is an exported model, not a bundle."""
    return any((folder / name).is_file() for name in NETS) and not (folder / WEIGHTS).exists()


def read_exported(folder: Path) -> Bundle:
    """Read the folder of an exported model."""
    config = read_config(folder)
    files, card = _read_texts(folder)
    programs = {name: folder / name for name in (*OPENED, *DATA_FILES) if (folder / name).is_file()}
    return Bundle(config, files, {}, card, programs)


def _read_texts(folder: Path) -> tuple[dict[str, bytes], str]:
    """Read the files of fitted components, by name, and the model card."""
    try:
        card = (folder / CARD).read_text(encoding="utf-8") if (folder / CARD).is_file() else ""
        learnt = [file for file in sorted(folder.iterdir()) if file.name not in {*FIXED, *ATTACHED_NAMES, *DATA_FILES}]
        files = {file.name: file.read_bytes() for file in learnt if file.is_file() and file.suffix != ONNX}
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: the bundle is damaged: {reason_of(error)}.") from None
    return files, card


def read_config(folder: Path) -> dict[str, Any]:
    """Read only the config of a bundle."""
    _check_files(folder)
    try:
        config = parse_json((folder / CONFIG).read_bytes(), CONFIG)
    except (OSError, ValueError) as error:  # ValueError includes InputError
        raise InputError(f"{folder}: the bundle is damaged: {reason_of(error)}.") from None
    config = checked_config(config, folder)
    own: dict[str, str] = {}
    for key in ATTACHED:
        given = fusion(config).get(key)
        if given is None:
            continue
        name = NEURAL_LM if key == "lm" and given == NEURAL_LM else ATTACHED[key]
        if given != name or not (folder / name).is_file():  # an untrusted bundle must not name other files
            raise InputError(f"{folder}: decode.fusion.{key} must be the bundle's own file {name}; got {shown(given)}.")
        own[key] = str(folder / name)
    config = with_attached(config, own)
    check_attachable(config)
    return config


def attached_name(key: str, path: Path) -> str:
    """Return the name that a decoder's file has in the bundle; `key` is the setting that contains the file's path."""
    return NEURAL_LM if _is_neural(key, path) else ATTACHED[key]


def _is_neural(key: str, path: Path) -> bool:
    return key == "lm" and is_token_model(path)


def fusion(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fusion settings of the decoder; {} if there are none."""
    settings = config.get("decode", {}).get("fusion")
    return settings if isinstance(settings, Mapping) else {}


def with_attached(config: Mapping[str, Any], files: Mapping[str, str | None]) -> dict[str, Any]:
    """Return a config whose fusion settings contain the paths in `files`, which maps settings to paths."""
    if not files:
        return dict(config)
    return {**config, "decode": {**config["decode"], "fusion": {**fusion(config), **files}}}


def _check_files(folder: Path) -> None:
    """Check the files of an untrusted bundle.

    Links to other folders are refused, because tuning would copy their targets. Pipes are refused, because reading from
    a pipe would block. Large files are refused, because they would fill the memory.
    """
    try:
        for file in folder.iterdir():
            if file.is_symlink() and not real(file).is_relative_to(real(folder)):
                must = f"{folder}: a bundle's files must be inside its folder; {file.name} is a link to {real(file)}"
                raise InputError(f"{must}. Copy the file, if you trust it.")
            if not (file.is_file() or file.is_dir()):
                raise InputError(f"{folder}: a bundle must contain only files; {file.name} is a device or a pipe.")
            size = file.stat().st_size
            is_unbounded = file.name in UNBOUNDED or file.suffix == ONNX
            if file.is_file() and size > MAX_BYTES and not is_unbounded:
                must = f"{folder}: a bundle's files must have at most {MAX_BYTES:,} bytes, except weights"
                raise InputError(f"{must} and language models; {file.name} has {size:,}.")
    except (OSError, RuntimeError) as error:  # a RuntimeError is raised for a cycle of links
        raise InputError(f"{folder}: the bundle is damaged: {reason_of(error)}.") from None


def check_replaceable(folder: Path, bundle: Bundle, instead_of: Bundle | None = None) -> None:
    """Check in advance whether `replace_bundle` with these arguments can succeed."""
    check_attachable(bundle.config)
    check_replaceable_folder(folder, bundle.names | (instead_of.names if instead_of else set()), OF_A_BUNDLE)


def check_replaceable_folder(folder: Path, names: Collection[str], always: Collection[str]) -> None:
    """Check in advance that `replace_folder` would not refuse the folder for its content or its permissions.

    Raises:
        InputError: the folder contains other files than an older folder may, or cannot be written.
    """
    folder = real(folder)
    _check_replaceable(folder, names, always)
    if folder.parent.exists() and not os.access(folder.parent, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: the folder of a bundle must be writable; {folder.parent}: Permission denied.")


def replace_bundle(folder: Path, bundle: Bundle, instead_of: Bundle | None = None) -> None:
    """Write a bundle, atomically replacing an older bundle in the folder.

    If the process is killed, the folder is either the complete old bundle or the complete new bundle. For a moment, the
    old bundle has another name; if the process is killed at that moment, the next call restores the name.

    Args:
        folder: folder of the bundle.
        bundle: bundle to write.
        instead_of: the folder's present bundle, whose files may be removed; None: only files with the names in `bundle`
            may be removed.
    """
    check_attachable(bundle.config)
    names = bundle.names | (instead_of.names if instead_of else set())
    replace_folder(folder, names, OF_A_BUNDLE, lambda unfinished: _write_files(unfinished, bundle))


def replace_folder(
    folder: Path, names: Collection[str], always: Collection[str], write: Callable[[Path], None]
) -> None:
    """Write a folder, atomically replacing an older folder, like `replace_bundle`.

    Args:
        folder: the folder.
        names: names of files that an older folder may contain.
        always: names of files that an older folder must contain.
        write: creates the folder at the given path and writes its files.

    Raises:
        InputError: for the same reasons as in `replace_bundle`.
    """
    folder = real(folder)  # if the folder is a link, its target is replaced
    if not folder.name or folder.suffix in OF_FILES:
        must = "the folder of a bundle must have a name that does not end like an archive or a checkpoint"
        raise InputError(
            f"{must}; got {str(folder)!r}. Give another name; an archive is made by asr.convert --to nemo."
        )
    for parent in folder.parents:
        if all((parent / name).is_file() for name in OF_A_BUNDLE):
            must = f"{folder}: a bundle must not be inside another bundle"
            raise InputError(f"{must}; {parent} is a bundle. Give another folder.")
    unfinished, replaced = (folder.with_name(f".{folder.name}{end}") for end in (UNFINISHED, REPLACED))
    try:
        give_back(folder)
        _check_replaceable(folder, names, always)
        for leftover in (unfinished, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            write(unfinished)
            _sync(unfinished)
            _swap(unfinished, folder, replaced)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{folder}: the folder of a bundle must be writable; {reason_of(error)}.") from None


def give_back(folder: Path) -> None:
    """Restore the name of an older bundle if a process was killed while it replaced the bundle."""
    folder = real(folder)
    replaced = folder.with_name(f".{folder.name}{REPLACED}")
    if replaced.exists() and not folder.exists():
        os.rename(replaced, folder)


def check_attachable(config: Mapping[str, Any]) -> None:
    """Check that a bundle may contain the language models in the decoder's settings.

    KenLM's binary format is excluded: KenLM maps it into memory without checks, so an untrusted file is unsafe.

    Raises:
        InputError: an n-gram model is not in ARPA format, or a model is unreadable or invalid.
    """
    for key in ("lm", "spelling"):
        if (given := fusion(config).get(key)) is not None:
            _check_language_model(Path(given))


def _check_language_model(path: Path) -> None:
    if is_token_model(path):
        read_token_model(token_model_file(path))
        return
    try:
        with path.open("rb") as file:
            is_text = is_arpa(file.read(HEAD_BYTES))
    except OSError as error:
        raise InputError(f"{path}: must be a readable language model; got: {error.strerror}.") from None
    if not is_text:
        must = f"{path}: a bundle's language model must be ARPA; it is not"
        raise InputError(f"{must}. Other commands accept a KenLM binary with --lm.")


def _check_replaceable(folder: Path, names: Collection[str], always: Collection[str]) -> None:
    """Check that replacing the folder would remove only files of an older bundle."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: a bundle must be a folder; this is a file. Give another name.")
    present = {entry.name for entry in folder.iterdir() if entry.is_file()}
    strange = sorted(entry.name for entry in folder.iterdir() if entry.name not in present & {*names})
    if strange or (present and not {*always} <= present):
        files = ", ".join((strange or sorted(present))[:3])
        must = f"{folder}: a folder to replace must be empty or contain only an older bundle"
        raise InputError(f"{must}; it contains {files}. Give another folder, or move these files.")


def _write_files(folder: Path, bundle: Bundle) -> None:
    """Write a bundle's files."""
    folder.mkdir(parents=True)
    save_file({name: weight.contiguous() for name, weight in bundle.weights.items()}, folder / WEIGHTS)
    os.chmod(folder / WEIGHTS, 0o644)  # otherwise only the owner could read the file that safetensors wrote
    write_texts(folder, bundle)


def write_texts(folder: Path, bundle: Bundle) -> None:
    """Write all files of a bundle except its weights."""
    config = {
        KEY: FORMAT,
        **recorded_plugins(bundle.config),
        **with_attached(bundle.config, {key: attached_name(key, path) for key, path in bundle.attached.items()}),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / CARD).write_text(bundle.card, encoding="utf-8")
    for name, content in bundle.files.items():
        (folder / name).write_bytes(content)
    for key, path in bundle.attached.items():
        shutil.copyfile(path, folder / attached_name(key, path))


def _sync(folder: Path) -> None:
    """Flush the files of a folder to the disk."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def _swap(unfinished: Path, folder: Path, replaced: Path) -> None:
    """Give the new folder the name of the old folder; then remove the old folder."""
    if folder.exists():
        os.rename(folder, replaced)
    try:
        os.rename(unfinished, folder)
    except BaseException:
        if replaced.exists():
            os.rename(replaced, folder)
        raise
    sync_folder(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Return whether a config is that of an encoder without a head, which a pre-training writes."""
    return "head" not in config and all(key in config for key in ENCODER_KEYS)


def checked_config(config: Any, where: Path) -> dict[str, Any]:
    """Check that a config has a model's keys and the current format; remove the format number."""
    if isinstance(config, dict) and is_encoder(config):
        return of_today(without_plugins(config, where), where)
    if not isinstance(config, dict) or not all(key in config for key in MODEL_KEYS):
        raise InputError(f"{where}: a model's config must have the keys {', '.join(MODEL_KEYS)}.")
    config = of_today(without_plugins(config, where), where)
    if not isinstance(config["decode"], dict):
        raise InputError(f"{where}: decode must be a mapping with the key `name`; got {shown(config['decode'])}.")
    return config


def without_plugins(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Check that the command has named the plugins that a stored config records; return the config without them."""
    plugins.check_named(config.get(plugins.KEY, []), where)
    return {key: value for key, value in config.items() if key != plugins.KEY}


def recorded_plugins(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the entry of a stored config that names the plugins of its components; {} if asr alone can build them."""
    packages = plugins_of(config, (*MODEL_KEYS, PROMPT, "adapter", "token_model"))
    return {plugins.KEY: packages} if packages else {}


def why_not_loaded(error: Exception) -> str:
    """Return the reason why `torch.load` failed, without torch's advice to run the file's code."""
    _, is_there, reason = str(error).partition("WeightsUnpickler error: ")
    if not is_there:
        paragraphs = str(error).split("\n\n")
        reason = next((text for text in paragraphs if text.strip() and "weights_only" not in text), "it is damaged")
    return one_line(reason).partition(". ")[0].rstrip(".")
