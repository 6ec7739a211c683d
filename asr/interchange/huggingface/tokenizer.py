"""Conversion between Hugging Face's `tokenizer.json` and asr's tokenizers."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import sentencepiece

from asr.errors import InputError, shown
from asr.interchange.foreign import Vocabulary
from asr.tokenizer import sentencepiece as subwords
from asr.tokenizer.huggingface import FILE, SPACE, HuggingFace, names, unknown_piece

BLANK = "<pad>"  # name of the blank in Parakeet-CTC
OTHER_BLANKS = ("<blank>", "<|blank|>")  # names for an added blank; the first name that is not a piece is used


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


def take_vocabulary(content: bytes, vocab_size: int, blank: int) -> Vocabulary:
    """Convert a tokenizer whose piece `blank` is the blank of a head with `vocab_size` tokens.

    The blank is added if it is the last token and the tokenizer does not contain it, as in some transducers.

    Raises:
        InputError: the tokenizer is damaged, does not fit the head, or is not supported.
    """
    pieces = names(content)
    if len(pieces) == blank == vocab_size - 1:
        content = _with_blank(content, pieces)
    name = dict(enumerate(names(content))).get(blank)
    if name is None:
        raise InputError(f"{FILE} must have a piece {blank}, the blank; it has none.")
    tokenizer = HuggingFace(vocab_size=vocab_size, blank_piece=name)
    tokenizer.load({FILE: content})
    config = {"name": "huggingface", "vocab_size": vocab_size, "blank_piece": name}
    unknown = unknown_piece(content)
    return Vocabulary(config, tokenizer.files(), [text for text in tokenizer.pieces[1:] if text != unknown])


def _with_blank(content: bytes, pieces: list[str]) -> bytes:
    """Append the blank to the pieces of a `tokenizer.json`."""
    name = next(name for name in OTHER_BLANKS if name not in pieces)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = json.loads(content)
    tokenizer["added_tokens"] = [*(tokenizer.get("added_tokens") or []), {"id": len(pieces), "content": name, **plain}]
    return (json.dumps(tokenizer, ensure_ascii=False) + "\n").encode()


def give_vocabulary(config: Mapping[str, Any], learnt: Mapping[str, bytes]) -> Written:
    """Convert asr's tokenizer to Hugging Face's.

    Raises:
        InputError: the tokens are not subwords.
    """
    if config["name"] == "huggingface":
        content, blank = learnt[FILE], config["blank_piece"]
    elif config["name"] == "sentencepiece":
        content, blank = _tokenizer(learnt[subwords.FILE], config["algorithm"]), BLANK
    else:
        must = "tokenizer must be huggingface or sentencepiece for conversion to Hugging Face"
        raise InputError(f"{must}; got {shown(config['name'])}.")
    HuggingFace(vocab_size=config["vocab_size"], blank_piece=blank).load({FILE: content})  # checks the tokenizer
    settings = {
        "tokenizer_class": "ParakeetTokenizer",
        "processor_class": "ParakeetProcessor",
        "clean_up_tokenization_spaces": False,
        "pad_token": blank,
        "unk_token": unknown_piece(content),
    }
    return Written(content, names(content).index(blank), blank, settings)


def _tokenizer(model: bytes, algorithm: str) -> bytes:
    """Convert a SentencePiece model, which begins with the blank and the unknown piece; move the blank to the end."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    scores = {processor.id_to_piece(number): processor.get_score(number) for number in range(1, len(processor))}
    ids = {name: number for number, name in enumerate([*scores, BLANK])}
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": ids[name], "content": name, **plain} for name in (processor.id_to_piece(1), BLANK)],
        "pre_tokenizer": metaspace,
        "decoder": metaspace,
        "model": _unigram(scores) if algorithm == "unigram" else _bpe(scores, ids),
    }
    return (json.dumps(tokenizer, ensure_ascii=False) + "\n").encode()


def _unigram(scores: Mapping[str, float]) -> dict[str, Any]:
    return {"type": "Unigram", "unk_id": 0, "vocab": list(scores.items())}


def _bpe(scores: Mapping[str, float], ids: Mapping[str, int]) -> dict[str, Any]:
    """Return a BPE model. Its merges are all pairs of pieces whose concatenation is a piece, by decreasing score."""
    pairs = [(name[:at], name[at:]) for name in scores for at in range(1, len(name))]
    pairs = [pair for pair in pairs if pair[0] in scores and pair[1] in scores]
    merges = sorted(pairs, key=lambda pair: (-scores["".join(pair)], ids[pair[0]], ids[pair[1]]))
    vocab = {name: ids[name] for name in scores}
    return {"type": "BPE", "unk_token": next(iter(scores)), "fuse_unk": True, "vocab": vocab, "merges": merges}
