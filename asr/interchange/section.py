"""A section of another toolkit's config: what it asks for must be known, and what asr does not have is named."""

from collections.abc import Mapping
from typing import Any

from asr.errors import InputError, shown

Section = Mapping[str, Any]


def mapping(value: object, name: str) -> Section:
    """Take a section.

    Raises:
        InputError: it is none.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be a mapping of settings; got {shown(value)}.")
    return value


def check(
    settings: Section, section: str, others: set[str], fixed: Mapping[str, tuple[object, tuple[object, ...]]]
) -> None:
    """Check that a section asks for nothing that we do not have.

    Args:
        settings: of the section.
        section: its name.
        others: keys whose values may be any.
        fixed: of other keys, the toolkit's value where there is none, and those that we have.

    Raises:
        InputError: naming the first key that does.
    """
    for key, (default, ours) in fixed.items():
        value = settings.get(key, default)
        if value not in ours:
            raise InputError(f"{section}.{key} must be {as_yaml(ours[0])}, which asr has; got {as_yaml(value)}.")
    unknown = sorted(map(str, settings.keys() - fixed.keys() - others))
    if unknown:
        raise InputError(f"{section}.{unknown[0]} must not be set: asr does not know what it asks for.")


def as_yaml(value: object) -> str:
    """Show a value as YAML, and JSON, write it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else shown(value)


def whole(settings: Section, name: str, default: int | None = None) -> int:
    """Take a whole number; `name` is that of the section and the key.

    Raises:
        InputError: it is none.
    """
    value = settings.get(name.rpartition(".")[2], default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{name} must be a whole number; got {as_yaml(value)}.")
    return value
