"""Conversion between Hugging Face's `tokenizer.json` and asr's tokenizers."""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sentencepiece

from asr.apps.convert.foreign import Vocabulary, is_hidden
from asr.apps.convert.sentences import SENTENCES, tokens_of
from asr.apps.convert.subword_model import BLANK, charsmap, model_of, with_blank
from asr.base.system.learnt import parse_json
from asr.base.text.hidden_pieces import hidden_files
from asr.base.text.numbers import counted
from asr.base.text.words import BYTE
from asr.components.tokenizer import sentencepiece as subwords
from asr.components.tokenizer.huggingface import FILE, SPACE, HuggingFace, is_byte_level, names, steps, unknown_piece
from asr.components.tokenizer.subword_pieces import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, SubwordPiece
from asr.core.build import build_tokenizer
from asr.errors import InputError, shown

BLANKS = ("<pad>", "<blank>", "<|blank|>")  # names for an added blank, the first of which is Parakeet-CTC's


class Written(NamedTuple):
    """A tokenizer in Hugging Face's format.

    Args:
        content: content of `tokenizer.json`.
        blank: index of the blank among the pieces.
        blank_piece: name of the blank.
        settings: settings of `tokenizer_config.json`.
    """

    content: bytes
    blank: int
    blank_piece: str
    settings: dict[str, Any]


def take_vocabulary(
    content: bytes, vocab_size: int, blank: int, hides: Callable[[str], bool] = is_hidden
) -> Vocabulary:
    """Convert a tokenizer whose piece `blank` is the blank of a head with `vocab_size` tokens.

    The blank is added if it is the last token and the tokenizer does not contain it, as in some transducers. Added
    tokens that spell text become normal pieces, because the library drops the spaces around added tokens, such as the
    digits of Parakeet-TDT v3. Added tokens after those of the head, such as <extra_id_0>, are left out.

    Args:
        content: content of `tokenizer.json`.
        vocab_size: number of tokens of the head.
        blank: id of the blank.
        hides: whether a piece of this name is left out of texts.
    """
    content, num_others = _of_head(content, vocab_size)
    pieces = names(content)
    if len(pieces) == blank == vocab_size - 1:
        content = _with_blank(content, pieces)
    name = dict(enumerate(names(content))).get(blank)
    if name is None:
        raise InputError(f"{FILE} must have a piece {blank}, the blank; it has none.")
    content, mended = _with_normal_pieces(content, name)
    tokenizer = HuggingFace(vocab_size=vocab_size, blank_piece=name)
    tokenizer.load({FILE: content})
    hidden = {token: piece for token, piece in enumerate(tokenizer.names) if hides(piece)}
    config = {"name": "huggingface", "vocab_size": vocab_size, "blank_piece": name}
    unspelling = {"", unknown_piece(content), *hidden.values()}
    spelling = [piece for piece in tokenizer.names if piece not in unspelling]
    if is_byte_level(content):  # each byte is a piece, whatever the texts were; longer pieces come from the texts
        longer = {piece for piece in tokenizer.pieces if len(piece.strip()) > 1 and not BYTE.search(piece)}
        spelling = [piece for piece in spelling if piece in longer]
    notes = _notes(mended, num_others)
    return Vocabulary(config, tokenizer.files() | hidden_files([*hidden]), spelling, [*hidden.values()], notes)


def _notes(mended: list[str], num_others: int) -> list[str]:
    notes = []
    if num_others:
        notes.append(f"{counted(num_others, 'added token')} left out of {FILE}: the head has no output for them.")
    if mended:
        tokens = f"{counted(len(mended), 'added token')}, such as {shown(mended[0])}"
        notes.append(f"{tokens}, became normal pieces in {FILE}, because texts would lose the spaces around them.")
    return notes


def _of_head(content: bytes, vocab_size: int) -> tuple[bytes, int]:
    """Leave out the added tokens whose ids are not outputs of the head; also return their number."""
    tokenizer = parse_json(content, FILE)
    added = tokenizer.get("added_tokens") if isinstance(tokenizer, dict) else None
    if not isinstance(added, list):
        return content, 0

    def is_outside(token: object) -> bool:
        number = token.get("id") if isinstance(token, Mapping) else None
        return isinstance(number, int) and number >= vocab_size

    kept = [token for token in added if not is_outside(token)]
    if len(kept) == len(added):
        return content, 0
    tokenizer["added_tokens"] = kept
    return (json.dumps(tokenizer, ensure_ascii=False) + "\n").encode(), len(added) - len(kept)


def _with_normal_pieces(content: bytes, blank: str) -> tuple[bytes, list[str]]:
    """Make normal pieces of the added tokens that the model has and that spell text; also return their names."""
    tokenizer = json.loads(content)
    added, vocab = tokenizer.get("added_tokens") or [], tokenizer["model"]["vocab"]
    pieces = {*vocab} if isinstance(vocab, dict) else {piece for piece, _ in vocab}
    special = {blank, unknown_piece(content)}
    normal = [
        token["content"] for token in added if token["content"] in pieces - special and not is_hidden(token["content"])
    ]
    if not normal:
        return content, []
    tokenizer["added_tokens"] = [token for token in added if token["content"] not in normal]
    return (json.dumps(tokenizer, ensure_ascii=False) + "\n").encode(), normal


def _with_blank(content: bytes, pieces: list[str]) -> bytes:
    """Append the blank to the pieces of a `tokenizer.json`."""
    name = next(name for name in BLANKS[1:] if name not in pieces)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = json.loads(content)
    tokenizer["added_tokens"] = [*(tokenizer.get("added_tokens") or []), {"id": len(pieces), "content": name, **plain}]
    return (json.dumps(tokenizer, ensure_ascii=False) + "\n").encode()


def give_vocabulary(config: Mapping[str, Any], learnt: Mapping[str, bytes]) -> Written:
    """Convert asr's tokenizer to Hugging Face's."""
    if config["name"] == "huggingface":
        content, blank = learnt[FILE], config["blank_piece"]
    elif config["name"] == "sentencepiece":
        content, blank = _tokenizer(learnt[subwords.FILE], config["algorithm"])
    else:
        must = "tokenizer must be huggingface or sentencepiece for conversion to Hugging Face"
        raise InputError(f"{must}; got {shown(config['name'])}.")
    HuggingFace(vocab_size=config["vocab_size"], blank_piece=blank).load({FILE: content})  # checks the tokenizer
    unknown = unknown_piece(content)
    settings = {
        "tokenizer_class": "ParakeetTokenizer",
        "processor_class": "ParakeetProcessor",
        "clean_up_tokenization_spaces": False,
        "pad_token": blank,
        **({} if unknown is None else {"unk_token": unknown}),
    }
    return Written(content, names(content).index(blank), blank, settings)


def sentencepiece_of(config: Mapping[str, Any], content: bytes) -> bytes:
    """Convert a `tokenizer.json` to a SentencePiece model without the blank, which begins with the unknown piece."""
    if is_byte_level(content):
        must = f"{FILE} must not be a byte-level BPE for conversion to NeMo, whose SentencePiece models have none"
        raise InputError(f"{must}; it is one.")
    tokenizer, blank = json.loads(content), config["blank_piece"]
    model, types = tokenizer["model"], {str(unknown_piece(content)): UNKNOWN}
    for token in tokenizer.get("added_tokens") or []:
        types.setdefault(token["content"], CONTROL if token["special"] else USER_DEFINED)
    others = [name for name in names(content) if name != blank]
    if BLANK in others:
        raise InputError(f"{FILE} must have no piece {BLANK}, which names the blank; it has one beside {shown(blank)}.")
    if others[0] != unknown_piece(content):
        must = f"the first piece of {FILE} must be the unknown piece for conversion to NeMo"
        raise InputError(f"{must}; got {shown(others[0])}.")
    is_bpe = model["type"] == "BPE"
    scores = {} if is_bpe else dict(model["vocab"])
    pieces = [
        SubwordPiece(name, scores.get(name, -number), types.get(name, NORMAL)) for number, name in enumerate(others)
    ]
    algorithm = "bpe" if is_bpe else "unigram"
    converted = model_of(pieces, algorithm, _compiled(content))
    _check_same_tokens(config, content, algorithm, converted)
    return converted


def _compiled(content: bytes) -> bytes:
    """Return the replacements of characters of a `tokenizer.json`; SentencePiece itself removes superfluous spaces."""
    compiled = b""
    for step in steps(content):
        if step["type"] == "Precompiled":
            compiled = base64.b64decode(step["precompiled_charsmap"])
        elif step["type"] not in ("Strip", "Replace"):
            must = f"the normalizer of {FILE} must be one that a SentencePiece model has, for conversion to NeMo"
            raise InputError(f"{must}; got {step['type']}.")
    return compiled


def _check_same_tokens(config: Mapping[str, Any], content: bytes, algorithm: str, model: bytes) -> None:
    """Check that a SentencePiece model splits sentences into the pieces of the `tokenizer.json` that it replaces."""
    sentencepiece_config = {"name": "sentencepiece", "algorithm": algorithm, "vocab_size": config["vocab_size"]}
    theirs, ours = build_tokenizer({"tokenizer": config}), build_tokenizer({"tokenizer": sentencepiece_config})
    theirs.load({FILE: content})
    ours.load({subwords.FILE: with_blank(model)})
    for sentence in SENTENCES:
        tokens, others = tokens_of(theirs, sentence), tokens_of(ours, sentence)
        if tokens != others:
            must = f"a SentencePiece model must split texts as {FILE} does, for conversion to NeMo"
            given = [None if ids is None else [theirs.names[token] for token in ids] for ids in (others, tokens)]
            raise InputError(f"{must}; {shown(sentence)} becomes {shown(given[0])} instead of {shown(given[1])}.")


def _tokenizer(model: bytes, algorithm: str) -> tuple[bytes, str]:
    """Convert a SentencePiece model, which begins with the blank and the unknown piece; move the blank to the end.

    Returns:
        The content of `tokenizer.json`, and the name of the blank.
    """
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    scores = {processor.id_to_piece(number): processor.get_score(number) for number in range(1, len(processor))}
    blank = next(name for name in BLANKS if name not in scores)
    ids = {name: number for number, name in enumerate([*scores, blank])}
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": ids[name], "content": name, **plain} for name in (processor.id_to_piece(1), blank)],
        **_normalizer(charsmap(model)),
        "pre_tokenizer": metaspace,
        "decoder": metaspace,
        "model": _unigram(scores) if algorithm == "unigram" else _bpe(scores, ids),
    }
    return (json.dumps(tokenizer, ensure_ascii=False) + "\n").encode(), blank


def _normalizer(compiled: bytes) -> dict[str, Any]:
    """Return the section that normalises texts as SentencePiece does with these replacements of characters."""
    if not compiled:  # asr normalises the texts
        return {}
    steps = [
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(compiled).decode()},
        {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": SPACE},
    ]
    return {"normalizer": {"type": "Sequence", "normalizers": steps}}


def _unigram(scores: Mapping[str, float]) -> dict[str, Any]:
    return {"type": "Unigram", "unk_id": 0, "vocab": list(scores.items())}


def _bpe(scores: Mapping[str, float], ids: Mapping[str, int]) -> dict[str, Any]:
    """Return a BPE model. Its merges are all pairs of pieces whose concatenation is a piece, by decreasing score."""
    pairs = [(name[:at], name[at:]) for name in scores for at in range(1, len(name))]
    pairs = [pair for pair in pairs if pair[0] in scores and pair[1] in scores]
    merges = sorted(pairs, key=lambda pair: (-scores["".join(pair)], ids[pair[0]], ids[pair[1]]))
    vocab = {name: ids[name] for name in scores}
    return {"type": "BPE", "unk_token": next(iter(scores)), "fuse_unk": True, "vocab": vocab, "merges": merges}
