"""Convert mappings to settings, which are frozen dataclasses with a rule for each setting, and back.

A field has one of four kinds:

    seed: Annotated[int, whole(0, 9)]                    a setting, checked by its rule
    source: Annotated[str, TEXT, Key("from")]            a setting whose key is `from`
    data: DataSettings                                   a section: a mapping under the key `data`
    bounds: Annotated[BatchBounds, INLINE]               a group of settings without a key of its own
    others: Annotated[Mapping[str, Any], REST]           all other keys, unchecked

If a field has a default, its key may be absent.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from asr.base.settings.rule import Rule
from asr.errors import InputError, shown

MISSING_VALUE = "MUST_BE_GIVEN"  # used in conf/experiment, because OmegaConf's ??? would not override a default

Settings = TypeVar("Settings")


class Key(NamedTuple):
    """The key of a setting, if the key is a reserved word in Python."""

    name: str


class Kind(Enum):
    """The way in which a field takes its value from a mapping."""

    SETTING = "setting"
    SECTION = "section"
    INLINE = "inline"
    REST = "rest"


INLINE, REST = Kind.INLINE, Kind.REST


@dataclass(frozen=True)
class Entry:
    """A field of a settings dataclass.

    Args:
        field: name of the field.
        key: name of the setting or section in the mapping.
        kind: kind of the field.
        type: type of the value; for a section or a group, its dataclass.
        rule: rule of a setting; None for other kinds of fields.
        required: whether the mapping must have the key.
    """

    field: str
    key: str
    kind: Kind
    type: Any
    rule: Rule | None
    required: bool


def entries(cls: type) -> tuple[Entry, ...]:
    """List the fields of a settings dataclass, in order."""
    hints = get_type_hints(cls, include_extras=True)
    return tuple(_entry(field, hints[field.name]) for field in fields(cls))


def _entry(field: "Field[Any]", hint: Any) -> Entry:
    annotated = hasattr(hint, "__metadata__")
    value, *marks = get_args(hint) if annotated else (hint,)
    key = next((mark.name for mark in marks if isinstance(mark, Key)), field.name)
    rule = next((mark for mark in marks if isinstance(mark, Rule)), None)
    kind = next((mark for mark in marks if isinstance(mark, Kind)), Kind.SETTING if rule else Kind.SECTION)
    required = field.default is MISSING and field.default_factory is MISSING
    return Entry(field.name, key=key, kind=kind, type=get_origin(value) or value, rule=rule, required=required)


def settings_of(cls: type) -> Iterator[Entry]:
    """Yield the settings and sections of a dataclass and of its groups, but not the settings within sections."""
    for entry in entries(cls):
        if entry.kind is Kind.INLINE:
            yield from settings_of(entry.type)
        elif entry.kind is not Kind.REST:
            yield entry


def read(cls: type[Settings], mapping: object, where: str = "") -> Settings:
    """Read a mapping into a settings dataclass.

    Args:
        cls: a frozen dataclass with fields as described at the top of this module.
        mapping: values by key, sections as mappings.
        where: name of the section; empty for the settings of a whole run.

    Raises:
        InputError: a key is absent or unknown, or a value is missing or breaks its rule; the message names the setting.
    """
    if not isinstance(mapping, Mapping):
        raise InputError(f"{where or 'a config'} must be a mapping of settings; got {shown(mapping)}.")
    known = list(settings_of(cls))
    missing = [entry.key for entry in known if entry.required and entry.key not in mapping]
    takes_rest = any(entry.kind is Kind.REST for entry in entries(cls))
    unknown = [] if takes_rest else [str(key) for key in mapping if key not in {entry.key for entry in known}]
    if missing or unknown:
        must = f"{where or 'a config'} must set exactly {', '.join(entry.key for entry in known)}"
        raise InputError(f"{must}; missing: {', '.join(missing) or 'none'}, unknown: {', '.join(unknown) or 'none'}.")
    return _read(cls, mapping, where)


def _read(cls: type[Settings], mapping: Mapping[str, Any], where: str) -> Settings:
    values: dict[str, Any] = {}
    for entry in entries(cls):
        name = f"{where}.{entry.key}" if where else entry.key
        if entry.kind is Kind.INLINE:
            values[entry.field] = _read(entry.type, mapping, where)
        elif entry.kind is Kind.REST:
            named = {known.key for known in settings_of(cls)}
            values[entry.field] = {key: value for key, value in mapping.items() if key not in named}
        elif entry.kind is Kind.SECTION:
            values[entry.field] = read(entry.type, mapping[entry.key], name)
        elif entry.key in mapping:
            assert entry.rule is not None
            if mapping[entry.key] == MISSING_VALUE:
                raise InputError(f"{name} must be given, because it has no default. Add {name}=... to the command.")
            entry.rule.check(name, mapping[entry.key])
            values[entry.field] = mapping[entry.key]
    return cls(**values)


def as_mapping(settings: object) -> dict[str, Any]:
    """Convert settings to a mapping; the inverse of `read`."""
    mapping: dict[str, Any] = {}
    for entry in entries(type(settings)):
        value = getattr(settings, entry.field)
        if entry.kind is Kind.INLINE:
            mapping |= as_mapping(value)
        elif entry.kind is Kind.REST:
            mapping |= value
        else:
            mapping[entry.key] = as_mapping(value) if entry.kind is Kind.SECTION else value
    return mapping


def check(settings: object, where: str = "") -> None:
    """Check the values of settings that were not made by `read`.

    Raises:
        InputError: a value breaks its rule; the message names the first setting with an invalid value.
    """
    for entry in entries(type(settings)):
        if entry.rule is not None:
            entry.rule.check(f"{where}.{entry.key}" if where else entry.key, getattr(settings, entry.field))
