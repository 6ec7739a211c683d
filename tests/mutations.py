"""Configs with one wrong value, as by a typing error or from an untrusted author."""

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
    """Yield the place and the value of each value that holds no other, and of each mapping and list too."""
    if path:
        yield path, config
    if isinstance(config, Mapping):
        for key, value in config.items():
            yield from leaves(value, (*path, key))
    elif isinstance(config, list):
        for position, value in enumerate(config[:3]):  # the others are like them
            yield from leaves(value, (*path, position))


def mutations(config: Any, values: tuple[Any, ...] = WRONG) -> Iterator[tuple[Path, Any, Any]]:
    """Yield place, new value and config for each place of a config and each wrong value."""
    for path, old in leaves(config):
        for value in values:
            if value is not old and value != old:
                yield path, value, changed(config, path, value)


def changed(config: Any, path: Path, value: Any) -> Any:
    """Return a copy of a config with another value at a place."""
    copied = copy.deepcopy(config)
    inner = copied
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copied
