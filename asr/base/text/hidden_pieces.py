"""Hidden pieces: tokens that a model predicts like others, but that spell no text, such as <|en|> or <en-US>.

<EOU> ends an utterance: the speaker's turn is over. <EOB> ends a backchannel, such as "mm-hm", which leaves the turn to
the other speaker. Both are pieces of NVIDIA's parakeet_realtime_eou_120m-v1.
"""

import re
from collections.abc import Mapping, Sequence

from asr.base.system.learnt import from_json, to_json
from asr.errors import InputError, shown

FILE = "hidden_pieces.json"
END_OF_UTTERANCE, END_OF_BACKCHANNEL = "<EOU>", "<EOB>"
ENDS = (END_OF_UTTERANCE, END_OF_BACKCHANNEL)  # pieces that can be appended to a tokenizer, and are then hidden
LANGUAGE_TAG = re.compile(r"<([a-z]{2}-[A-Z]{2})>")  # the name of a piece that names the language of a text


def hidden_files(hidden: Sequence[int]) -> dict[str, bytes]:
    """Return the file that contains the ids of hidden pieces; {} if there are none."""
    return to_json(FILE, sorted(hidden)) if hidden else {}


def read_hidden(files: Mapping[str, bytes], vocab_size: int) -> list[int]:
    """Return the ids of hidden pieces from the files of a tokenizer.

    Raises:
        InputError: the file is damaged.
    """
    hidden = from_json(files, FILE) if FILE in files else []
    must = f"{FILE} must be a list of ids from 1 to {vocab_size - 1}"
    if not isinstance(hidden, list):
        raise InputError(f"{must}; got {shown(hidden)}.")
    for token in hidden:
        if not isinstance(token, int) or isinstance(token, bool) or not 1 <= token < vocab_size:
            raise InputError(f"{must}; got {shown(token)}.")
    return hidden


def appended_ends(pieces: Sequence[str], first_id: int) -> list[int]:
    """Return the ids of the hidden pieces among appended ones, whose ids begin with `first_id`."""
    return [token for token, piece in enumerate(pieces, start=first_id) if piece in ENDS]


def without_hidden(pieces: Sequence[str], hidden: Sequence[int]) -> list[str]:
    """Return the text of each id; hidden pieces spell nothing."""
    ids = set(hidden)
    return ["" if token in ids else piece for token, piece in enumerate(pieces)]


def language_of(tokens: Sequence[int], names: Sequence[str]) -> str | None:
    """Return the language that the last tag among tokens names, such as "de-DE"; None without a tag.

    Args:
        tokens: ids.
        names: the name of each id.
    """
    return next((tag[1] for token in reversed(tokens) if (tag := LANGUAGE_TAG.fullmatch(names[token]))), None)


def language_tags(ids: Mapping[str, int], names: Sequence[str]) -> dict[str, str]:
    """Return the tag of each language that has one.

    A name of a language without a tag of its own has the tag of another name of this language: de and de-DE are one.

    Args:
        ids: the number of each language, by name.
        names: the names of the tokenizer's pieces.
    """
    pieces = {match[1]: name for name in names if (match := LANGUAGE_TAG.fullmatch(name))}
    by_id = {number: pieces[language] for language, number in [*ids.items()][::-1] if language in pieces}
    tags = {language: pieces.get(language, by_id.get(number)) for language, number in ids.items() if number}
    return {language: tag for language, tag in tags.items() if tag is not None}
