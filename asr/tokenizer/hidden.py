"""Hidden pieces: tokens that a model predicts like others, but that spell no text, such as <|en|> or <en-US>."""

from collections.abc import Mapping, Sequence

from asr.errors import InputError, shown
from asr.system.learnt import from_json, to_json

FILE = "hidden_pieces.json"


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


def without_hidden(pieces: Sequence[str], hidden: Sequence[int]) -> list[str]:
    """Return the text of each id; hidden pieces spell nothing."""
    ids = set(hidden)
    return ["" if token in ids else piece for token, piece in enumerate(pieces)]
