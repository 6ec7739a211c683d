"""Configs with one wrong value, as from a typo or an untrusted author."""

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

WRONG = (
    0,
    -1,
    1.5,
    10**9,
    10**20,
    -(10**20),
    math.nan,
    math.inf,
    -math.inf,
    "text",
    "",
    [],
    [0],
    {},
    {"a": 1},
    None,
    True,
)

Path = tuple[Any, ...]


def leaves(config: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the position and value of each scalar, mapping and list below the top level."""
    if path:
        yield path, config
    if isinstance(config, Mapping):
        for key, value in config.items():
            yield from leaves(value, (*path, key))
    elif isinstance(config, list):
        # The first three entries of a list suffice, because the others are similar.
        for position, value in enumerate(config[:3]):
            yield from leaves(value, (*path, position))


def mutations(config: Any, values: tuple[Any, ...] = WRONG) -> Iterator[tuple[Path, Any, Any]]:
    """Yield (position, wrong value, changed config) for each position of a config and each wrong value."""
    for path, old in leaves(config):
        for value in values:
            if value is not old and value != old:
                yield path, value, changed(config, path, value)


def changed(config: Any, path: Path, value: Any) -> Any:
    """Return a config with another value at a position; it shares its other parts with the given config."""
    if not path:
        return value
    copied = copy.copy(config)
    copied[path[0]] = changed(config[path[0]], path[1:], value)
    return copied
