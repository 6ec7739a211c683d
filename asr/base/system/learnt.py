"""JSON files of fitted components in a bundle; a bundle may be untrusted, so each fault becomes an InputError."""

import json
from collections.abc import Mapping
from typing import Any

from asr.errors import InputError, one_line

MAX_BYTES = 64 << 20  # maximum size of a file; the largest files, models of tokenizers, have a few megabytes


def to_json(name: str, value: Any) -> dict[str, bytes]:
    """Convert plain values to a JSON file; return its content by its name."""
    return {name: (json.dumps(value, ensure_ascii=False) + "\n").encode()}


def from_json(files: Mapping[str, bytes], name: str) -> Any:
    """Read a file that `to_json` has written.

    Raises:
        KeyError: the file is absent.
        InputError: the file is damaged.
    """
    return parse_json(files[name], name)


def parse_json(content: bytes, name: str) -> Any:
    """Parse untrusted JSON.

    Raises:
        InputError: the text is not JSON, is nested too deeply, or has a number with too many digits.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        reason = "its nesting is too deep" if isinstance(error, RecursionError) else one_line(error)
        raise InputError(f"{name} must be JSON; it is damaged: {reason}.") from None
