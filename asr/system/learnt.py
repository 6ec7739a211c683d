"""What components have learnt, as files of a bundle: JSON, read with care, since a bundle may come from a stranger."""

import json
from collections.abc import Mapping
from typing import Any

from asr.errors import InputError, one_line

MAX_BYTES = 64 << 20  # of such a file; the largest is a tokenizer's model of some megabytes


def to_json(name: str, value: Any) -> dict[str, bytes]:
    """Make a file of plain values."""
    return {name: (json.dumps(value, ensure_ascii=False) + "\n").encode()}


def from_json(files: Mapping[str, bytes], name: str) -> Any:
    """Read a file that `to_json` made.

    Raises:
        KeyError: it is not there.
        InputError: it is damaged.
    """
    return parse_json(files[name], name)


def parse_json(content: bytes, name: str) -> Any:
    """Read JSON, whatever it is that stands there.

    Raises:
        InputError: it is none, or holds what no program of ours writes: a number without end, or brackets in brackets.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:  # ValueError: UnicodeDecodeError is one, too
        reason = "it is nested too deep" if isinstance(error, RecursionError) else one_line(error)
        raise InputError(f"{name} must be JSON; it is damaged: {reason}.") from None
