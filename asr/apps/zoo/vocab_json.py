"""Conversion between the `vocab.json` of transformers' Wav2Vec2CTCTokenizer and asr's tokenizers."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from asr.apps.convert.foreign import Vocabulary, is_hidden
from asr.apps.convert.section import Section, mapping, whole
from asr.base.system.learnt import parse_json
from asr.base.text.hidden_pieces import hidden_files
from asr.base.text.normalize import as_written
from asr.components.tokenizer.char import Char
from asr.components.tokenizer.huggingface import FILE, SPACE, HuggingFace
from asr.components.tokenizer.huggingface import names as names_in
from asr.core.hub.huggingface_files import ADDED_TOKENS, SPECIAL_TOKENS, TOKENIZER_CONFIG
from asr.core.hub.huggingface_files import VOCAB as NAME
from asr.errors import InputError, shown
from asr.interfaces import BLANK_ID

MAX_PIECES = 100_000
DELIMITER = "|"  # transformers' default for a space between words
# Keys of special pieces, with their names in a folder without tokenizer_config.json: transformers' defaults.
SPECIAL_KEYS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
PAD, UNKNOWN = "[PAD]", "[UNK]"  # transformers' usual names in a vocab.json
UNNAMED = "<|{}|>"  # name of an id that the file does not name


class Characters(NamedTuple):
    """The tokenizer of a head in transformers' format.

    Args:
        vocab: ids by piece, the content of `vocab.json`.
        settings: settings of `tokenizer_config.json`.
        blank: index of the blank.
    """

    vocab: dict[str, int]
    settings: dict[str, Any]
    blank: int


def read_characters(files: Mapping[str, bytes], config: Section) -> tuple[Vocabulary, int]:
    """Return the vocabulary of a model's head, and the blank's index.

    Args:
        files: files of the model's folder, by name.
        config: config of the model.
    """
    if NAME not in files:
        raise InputError(f"{NAME} must exist; it is missing.")
    vocab_size, blank = whole(config, "config.vocab_size"), whole(config, "config.pad_token_id", 0)
    if not 0 <= blank < vocab_size <= MAX_PIECES:
        must = f"pad_token_id must be the blank's number, below vocab_size, which is at most {MAX_PIECES:,}"
        raise InputError(f"{must}; got {blank} and {vocab_size}.")
    return take_characters(parse_json(files[NAME], NAME), _settings(files), vocab_size, blank), blank


def _settings(files: Mapping[str, bytes]) -> Section:
    """Return the settings of the tokenizer; older versions of transformers store them in up to three files."""
    config, special, added = (
        mapping(parse_json(files[name], name) if name in files else {}, name)
        for name in (TOKENIZER_CONFIG, SPECIAL_TOKENS, ADDED_TOKENS)
    )
    return {"added_tokens_decoder": {str(number): name for name, number in added.items()}, **special, **config}


def characters_of(texts: Sequence[str]) -> Vocabulary:
    """Return a vocabulary of the characters of texts, for a new head."""
    tokenizer = Char()
    tokenizer.fit(map(as_written, texts))
    if tokenizer.vocab_size == 1:
        raise InputError("--texts must name a manifest with texts; it has none.")
    return Vocabulary({"name": "char"}, tokenizer.files(), tokenizer.pieces[1:], [], [])


def take_characters(content: object, settings: Section, vocab_size: int, blank: int) -> Vocabulary:
    """Convert a `vocab.json`, whose ids may have any order, to the tokens of a BPE without merges.

    Special pieces, such as [UNK], and ids without a name become hidden pieces.

    Args:
        content: ids by piece.
        settings: settings of `tokenizer_config.json`, and of the files in its place.
        vocab_size: number of tokens of the head.
        blank: id of the blank.
    """
    ids = _checked(content, vocab_size)
    special = {_content(settings.get(key, name)) for key, name in SPECIAL_KEYS.items()} | {PAD, UNKNOWN}
    named = {number: name for name, number in (_added(settings, vocab_size) | ids).items()}
    delimiter = _content(settings.get("word_delimiter_token", DELIMITER))
    lower = settings.get("do_lower_case", False) is True
    names: list[str] = []
    hidden: list[str] = []
    for number in range(vocab_size):
        name = named.get(number, UNNAMED.format(number))
        if name == delimiter:
            name = SPACE
        elif name in special or number == blank or is_hidden(name):
            hidden += [name] if number != blank else []
        elif len(name) != 1:
            raise InputError(f"{NAME}: a piece must be one character, or a special piece; got {shown(name)}.")
        else:
            name = name.lower() if lower and len(name.lower()) == 1 else name
        names.append(name)
    twice, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise InputError(f"{NAME} must have different pieces; {shown(twice.replace(SPACE, ' '))} occurs twice.")
    unknown = _content(settings.get("unk_token", SPECIAL_KEYS["unk_token"]))
    unknown = unknown if unknown in hidden else UNKNOWN if UNKNOWN in hidden else names[blank]
    made = _tokenizer(names, unknown)
    tokenizer = HuggingFace(vocab_size=vocab_size, blank_piece=names[blank])
    tokenizer.load({FILE: made})
    unspelled = {"", *hidden}
    tokens = [token for token, name in enumerate(tokenizer.names) if name in unspelled and token != BLANK_ID]
    config = {"name": "huggingface", "vocab_size": vocab_size, "blank_piece": names[blank]}
    spelling = [name for name in tokenizer.names if name not in unspelled]
    return Vocabulary(config, tokenizer.files() | hidden_files(tokens), spelling, hidden, [])


def _checked(content: object, vocab_size: int) -> dict[str, int]:
    must = f"{NAME} must have an id from 0 to {vocab_size - 1} for each piece"
    ids = {}
    for name, number in mapping(content, NAME).items():
        if not isinstance(name, str) or not name or type(number) is not int or not 0 <= number < vocab_size:
            raise InputError(f"{must}; got {shown(name)}: {shown(number)}.")
        ids[name] = number
    if len(set(ids.values())) < len(ids):
        raise InputError(f"{must}, and each id once; an id has several pieces.")
    return ids


def _added(settings: Section, vocab_size: int) -> dict[str, int]:
    """Return the ids of pieces that `tokenizer_config.json` adds to those of `vocab.json`."""
    added = settings.get("added_tokens_decoder")
    entries = {number: _content(entry) for number, entry in added.items()} if isinstance(added, Mapping) else {}
    numbers = map(str, range(vocab_size))
    return {entries[number]: int(number) for number in numbers if entries.get(number)}


def _content(token: object) -> str:
    """Return the text of a token in transformers' settings, which is a text or a mapping; "" if there is none."""
    token = token.get("content") if isinstance(token, Mapping) else token
    return token if isinstance(token, str) else ""


def _tokenizer(names: Sequence[str], unknown: str) -> bytes:
    """Return a `tokenizer.json` whose pieces are characters."""
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "never", "split": False}
    ids = {name: number for number, name in enumerate(names)}
    model = {"type": "BPE", "unk_token": unknown, "vocab": ids, "merges": []}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": metaspace, "decoder": metaspace, "model": model}
    return (json.dumps(tokenizer, ensure_ascii=False) + "\n").encode()


def give_characters(config: Section, files: Mapping[str, bytes], pieces: Sequence[str], processor: str) -> Characters:
    """Convert asr's tokenizer, whose pieces are characters, to a `vocab.json`.

    Args:
        config: config of asr's tokenizer.
        files: files of asr's tokenizer.
        pieces: text of each id of asr; hidden pieces and the blank have none.
        processor: transformers' class for the tokenizer and the feature extractor.
    """
    if config["name"] == "huggingface":
        names = names_in(files[FILE])
        blank = names.index(config["blank_piece"])
    else:
        names, blank = [PAD, *pieces[1:]], 0
    spelled = {piece for piece in pieces if piece}
    for name in names:
        if len(name) != 1 and name.replace(SPACE, " ") in spelled:
            raise InputError(
                f"each piece of the tokenizer must be one character for conversion to Hugging Face's {NAME}; "
                f"got {shown(name)}."
            )
    written = [DELIMITER if name in (SPACE, " ") else name for name in names]
    if len(set(written)) < len(written):
        raise InputError(f"no character may be {DELIMITER}, which means a space in Hugging Face's {NAME}; one is.")
    unknown = next((name for name in written if name in (UNKNOWN, "<unk>")), UNKNOWN)
    settings = {
        "tokenizer_class": "Wav2Vec2CTCTokenizer",
        "processor_class": processor,
        "pad_token": written[blank],
        "unk_token": unknown,
        "bos_token": "<s>" if "<s>" in written else None,
        "eos_token": "</s>" if "</s>" in written else None,
        "word_delimiter_token": DELIMITER,
        "do_lower_case": False,
        "clean_up_tokenization_spaces": False,
    }
    return Characters({name: number for number, name in enumerate(written)}, settings, blank)
