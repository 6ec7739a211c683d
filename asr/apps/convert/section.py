"""Checks of another toolkit's config, and of asr's; errors name settings that the other side does not support."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from asr.errors import InputError, shown

Section = Mapping[str, Any]


def mapping(value: object, name: str) -> Section:
    """Check that a value is a section."""
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be a mapping of settings; got {shown(value)}.")
    return value


def check(
    settings: Section, section: str, others: set[str], fixed: Mapping[str, tuple[object, tuple[object, ...]]]
) -> None:
    """Check that asr supports all settings of a section.

    Args:
        settings: settings of the section.
        section: name of the section.
        others: keys that may have any value.
        fixed: keys with restricted values; for each key, the toolkit's default and the values that asr supports.
    """
    for key, (default, ours) in fixed.items():
        value = settings.get(key, default)
        if value not in ours:
            raise InputError(f"{section}.{key} must be {as_yaml(ours[0])}, which asr supports; got {as_yaml(value)}.")
    unknown = sorted(map(str, settings.keys() - fixed.keys() - others))
    if unknown:
        raise InputError(f"{section}.{unknown[0]} must be absent: asr does not support this setting.")


def as_yaml(value: object) -> str:
    """Write a value as in YAML and JSON."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else shown(value)


def whole(settings: Section, name: str, default: int | None = None) -> int:
    """Return a setting that is a whole number; `name` is its section and key, such as "encoder.dim"."""
    value = settings.get(name.rpartition(".")[2], default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{name} must be a whole number; got {as_yaml(value)}.")
    return value


def has_encoder(*names: str) -> Callable[[Section], bool]:
    """Return the `fits` of a writer: whether a model of asr, given its config, has an encoder of one of these names."""
    return lambda config: config["encoder"]["name"] in names


def check_parts(
    config: Section,
    toolkit: str,
    needed: Mapping[str, tuple[object, ...]],
    cures: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Check that another toolkit has the parts of an asr model.

    Args:
        config: config of the model.
        toolkit: name of the toolkit.
        needed: for parts and settings of asr, such as "encoder.block.norm" and "encoder.block.norm.eps", the names or
            values that the toolkit has; none: the model must not have this part. A setting that the model's part does
            not have is not checked.
        cures: advice for a part or setting, which begins with a space.
    """
    for name, values in needed.items():
        given: object = config
        for key in name.split("."):
            given = given.get(key, _ABSENT) if isinstance(given, Mapping) else _ABSENT
        given = given.get("name") if isinstance(given, Mapping) else given
        if given not in (*values, _ABSENT):
            must = f"{name} must be {' or '.join(map(as_yaml, values)) or 'absent'} for conversion to {toolkit}"
            raise InputError(f"{must}; got {as_yaml(given)}.{cures.get(name, '')}")


_ABSENT = object()
