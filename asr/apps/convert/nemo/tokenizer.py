"""Conversion between NVIDIA NeMo's tokenizers and asr's. NeMo's blank is CTC's last output, asr's blank is piece 0."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from asr.apps.convert.foreign import Vocabulary, is_hidden
from asr.apps.convert.huggingface.tokenizer import sentencepiece_of
from asr.apps.convert.nemo.archive import HASHED, hashed, tokenizer_file
from asr.apps.convert.subword_model import BLANK, algorithm, processor_of, with_blank, without_blank
from asr.base.system.learnt import to_json
from asr.base.text.hidden_pieces import hidden_files
from asr.components.tokenizer import aggregate, char, huggingface
from asr.components.tokenizer.sentencepiece import FILE
from asr.core.hub.nemo_files import SCORES, TOKENIZER, VOCABULARY
from asr.errors import InputError, shown

AGGREGATE = "agg"  # tokenizer.type of NeMo's AggregateTokenizer


def take_vocabulary(
    nemo: Mapping[str, Any],
    head: Mapping[str, Any],
    files: dict[str, bytes],
    path: Path,
    languages: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Vocabulary:
    """Convert NeMo's tokenizer: SentencePiece's pieces, or characters if the model has no tokenizer.

    Args:
        nemo: NeMo's config.
        head: section of the head.
        files: files of the archive.
        path: path of the archive, for errors.
        languages: sections of the tokenizers of languages; {}: there is at most one tokenizer.
    """
    section = nemo.get("tokenizer")
    listed = head.get("vocabulary") or nemo.get("labels")
    if languages:
        return _of_languages(languages, listed, files, path)
    if section is None:
        if not isinstance(listed, list) or not all(isinstance(label, str) for label in listed):
            raise InputError(f"labels must be a list of characters if there is no tokenizer; got {shown(listed)}.")
        learnt = to_json(char.FILE, listed)
        char.Char().load(learnt)
        return Vocabulary({"name": "char"}, learnt, list(listed), hidden=[], notes=[])
    if not isinstance(section, dict) or section.get("type") != "bpe" or section.get("custom_tokenizer"):
        given = section.get("type") if isinstance(section, dict) else section
        raise InputError(f"tokenizer.type must be bpe, a SentencePiece model, which asr supports; got {shown(given)}.")
    model = tokenizer_file(files, section.get("model_path"), path)
    names = pieces(model)
    _check_listed(listed, names)
    hidden = _hidden(model, names)
    learnt = {FILE: with_blank(model)} | hidden_files([number + 1 for number in hidden])  # the blank is inserted
    config = {"name": "sentencepiece", "algorithm": algorithm(model), "vocab_size": len(names) + 1}
    spelling = [name for number, name in enumerate(names) if number and number not in hidden]
    return Vocabulary(config, learnt, spelling, [names[number] for number in hidden], notes=[])


def _of_languages(
    languages: Mapping[str, Mapping[str, Any]], listed: object, files: Mapping[str, bytes], path: Path
) -> Vocabulary:
    """Convert the tokenizers of several languages, whose pieces NeMo numbers one language after the other."""
    learnt, all_names, hidden, spelling = {}, list[str](), list[int](), list[str]()
    for language, section in languages.items():
        model = tokenizer_file(files, section.get("model_path"), path)
        names = pieces(model)
        unspelled = _hidden(model, names)
        learnt[aggregate.file_of(language)] = with_blank(model)
        hidden += [len(all_names) + number for number in unspelled]
        spelling += [name for number, name in enumerate(names) if number and number not in unspelled]
        all_names += names
    _check_listed(listed, all_names)
    learnt |= hidden_files([number + 1 for number in hidden])  # the blank is inserted
    config = {"name": "aggregate", "languages": [*languages]}
    return Vocabulary(config, learnt, spelling, [all_names[number] for number in hidden], notes=[])


def _check_listed(listed: object, names: Sequence[str]) -> None:
    """Check that the config lists the pieces of the tokenizer, if it lists any."""
    if isinstance(listed, list) and listed and listed != names:
        both = zip([*listed, None], [*names, None], strict=False)
        number, (wanted, actual) = next((number, pair) for number, pair in enumerate(both) if pair[0] != pair[1])
        must = f"piece {number} of the tokenizer must be the vocabulary's {shown(wanted)}"
        raise InputError(f"{must}; got {shown(actual)}.")


def give_vocabulary(
    config: Mapping[str, Any], learnt: Mapping[str, bytes], pieces_with_blank: Sequence[str]
) -> tuple[list[str], dict[str, Any], list[tuple[str, bytes]]]:
    """Convert asr's tokenizer to NeMo's; return the pieces, the section of the config, and the files by name.

    Args:
        config: config of asr's tokenizer.
        learnt: files of asr's tokenizer.
        pieces_with_blank: text of each id.
    """
    if config["name"] == "char":
        return list(pieces_with_blank[1:]), {}, []
    if config["name"] == "aggregate":
        given = {key: _given(without_blank(learnt[aggregate.file_of(key)])) for key in config["languages"]}
        langs = {language: section for language, (_, section, _) in given.items()}
        all_files = {name: content for _, _, files in given.values() for name, content in files}
        names = [name for own_names, _, _ in given.values() for name in own_names]
        return names, {"dir": None, "type": AGGREGATE, "langs": langs}, [*all_files.items()]
    if config["name"] not in ("sentencepiece", "huggingface"):
        must = "tokenizer must be char, sentencepiece, huggingface or aggregate for conversion to NeMo"
        raise InputError(f"{must}; got {shown(config['name'])}.")
    is_json = config["name"] == "huggingface"
    return _given(sentencepiece_of(config, learnt[huggingface.FILE]) if is_json else without_blank(learnt[FILE]))


def _given(model: bytes) -> tuple[list[str], dict[str, str], list[tuple[str, bytes]]]:
    """Return the pieces of a model, the section of NeMo's config, and the files by name."""
    names, processor = pieces(model), processor_of(model)
    listed = "".join(f"{name}\n" for name in names[1:])
    scored = "".join(f"{name}\t{processor.get_score(number):g}\n" for number, name in enumerate(names))
    contents = {VOCABULARY: listed.encode(), SCORES: scored.encode(), TOKENIZER: model}
    files = {name: (hashed(name, content), content) for name, content in contents.items()}
    keys = {"vocab_path": VOCABULARY, "spe_tokenizer_vocab": SCORES, "model_path": TOKENIZER}
    paths = {key: HASHED + files[name][0] for key, name in keys.items()}
    return names, {"dir": ".", "type": "bpe", **paths}, [*files.values()]


def pieces(model: bytes) -> list[str]:
    """List the pieces of a model without blank, in SentencePiece's notation."""
    processor = processor_of(model)
    names = [processor.id_to_piece(number) for number in range(processor.vocab_size())]
    if not names or not processor.is_unknown(0):
        raise InputError(f"{FILE}: piece 0 must be the unknown piece; got {shown(names[:1])}.")
    if BLANK in names:
        raise InputError(f"{FILE} must have no piece {BLANK}, which names the blank; piece {names.index(BLANK)} is.")
    return names


def _hidden(model: bytes, names: list[str]) -> list[int]:
    """Return the numbers of hidden pieces: by their names, and the control and unused pieces of SentencePiece.

    Other types do not count: the digits of Parakeet-TDT v3 are user-defined, like its tags.
    """
    processor = processor_of(model)
    return [
        number
        for number, name in enumerate(names)
        if is_hidden(name) or processor.is_control(number) or processor.is_unused(number)
    ]
