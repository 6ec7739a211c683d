"""NeMo's models that have a tokenizer for each of several languages: all at once, or one that is cut out."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asr.apps.convert.nemo.archive import tokenizer_file
from asr.apps.convert.nemo.tokenizer import AGGREGATE, pieces
from asr.apps.convert.section import Section, mapping
from asr.base.text.numbers import counted
from asr.errors import InputError, shown

# Tensors with a row for each token of all languages, then the blank, then durations.
ROWS = re.compile(
    r"(ctc_decoder|decoder)\.decoder_layers\.0\.(weight|bias)"
    r"|decoder\.prediction\.embed\.weight|joint\.joint_net\.\d+\.(weight|bias)"
)
SIZES = ("vocab_size", "num_classes")  # settings that are the number of tokens without the blank


class CutModel(NamedTuple):
    """A model with the tokens of one language.

    Args:
        config: config with the tokenizer of the language.
        tensors: tensors with the rows of its tokens.
        notes: sentences for the user.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    notes: list[str]


def with_language(
    config: Section, tensors: Mapping[str, Tensor], files: Mapping[str, bytes], path: Path, language: str | None
) -> CutModel:
    """Return the model that writes one language; without a choice of one, the model is returned unchanged.

    Args:
        config: NeMo's config.
        tensors: tensors of the model.
        files: files of the archive.
        path: path of the archive, for errors.
        language: key of the language among those of the tokenizer; None: all languages, or there is one tokenizer.
    """
    own = languages_of(config)
    if language is None:
        note = f"All languages, {', '.join(own)}, are read; --language {next(iter(own), '')} leaves the others out."
        return CutModel(dict(config), dict(tensors), [note] if own else [])
    if language not in own:
        if not own:
            raise InputError(f"--language needs a model with a tokenizer for each language; got {shown(language)}.")
        raise InputError(f"--language must be one of the model's, {', '.join(own)}; got {shown(language)}.")
    sizes = {key: len(pieces(tokenizer_file(files, each.get("model_path"), path))) for key, each in own.items()}
    total, size = sum(sizes.values()), sizes[language]
    names = [*sizes]
    first = sum(sizes[key] for key in names[: names.index(language)])
    cut = dict(config) | {"tokenizer": own[language]}
    cut.pop("labels", None)
    for name in ("decoder", "joint", "aux_ctc"):
        if isinstance(given_section := config.get(name), Mapping):
            cut[name] = _of_size(given_section, total, size)
    rows = {name: _rows(name, tensor, first, size, total) for name, tensor in tensors.items() if ROWS.fullmatch(name)}
    note = f"{counted(size, 'token')} of {language}; {counted(total - size, 'token')} of other languages are left out."
    return CutModel(cut, dict(tensors) | rows, [note])


def languages_of(config: Section) -> dict[str, Section]:
    """Return the section of each language of NeMo's AggregateTokenizer, in order; {} for another tokenizer."""
    section = config.get("tokenizer")
    if not isinstance(section, Mapping) or section.get("type") != AGGREGATE:
        return {}
    languages = mapping(section.get("langs"), "tokenizer.langs")
    return {key: mapping(each, f"tokenizer.langs.{key}") for key, each in languages.items()}


def _of_size(section: Section, total: int, size: int) -> dict[str, Any]:
    """Return a section, and those within it, for a smaller number of tokens, without the list of tokens."""
    cut = {key: size if key in SIZES and value == total else value for key, value in section.items()}
    if "vocabulary" in cut:
        cut["vocabulary"] = None
    return cut | {key: _of_size(each, total, size) for key, each in cut.items() if isinstance(each, Mapping)}


def _rows(name: str, tensor: Tensor, first: int, size: int, total: int) -> Tensor:
    """Return the rows of a language, of the blank and of durations."""
    if tensor.ndim == 0 or len(tensor) <= total:
        has = len(tensor) if tensor.ndim else 0
        raise InputError(f"{name} must have a row for each of {total:,} tokens and the blank; it has {has:,}.")
    return torch.cat([tensor[first : first + size], tensor[total:]])
