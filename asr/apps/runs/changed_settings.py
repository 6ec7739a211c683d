"""Columns of a table of runs with the settings that differ between the runs."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asr.base.text.numbers import NONE
from asr.base.text.printable import printable

MAX_COLUMNS = 4  # with more settings that differ, one column lists those of each run

Settings = Mapping[str, Any]  # by key with dots, such as encoder.dim


def setting_columns(runs: Sequence[Settings]) -> dict[str, list[str]]:
    """Return the columns of the settings that differ: one for each, or, if there are many, one for all of them.

    Args:
        runs: settings of each run; an empty mapping, of a run whose settings are unknown, is not compared.

    Returns:
        By title of the column, a cell for each run.
    """
    keys = differing(runs)
    columns = {key: [_text(settings, key) for settings in runs] for key in keys}
    if len(keys) <= MAX_COLUMNS:
        return columns
    usual = {key: Counter(_text(settings, key) for settings in runs if settings).most_common(1)[0][0] for key in keys}
    changes = [
        [f"{key}={columns[key][run]}" for key in keys if settings and columns[key][run] != usual[key]]
        for run, settings in enumerate(runs)
    ]
    return {"changed settings": [" ".join(of_run) or NONE for of_run in changes]}


def differing(runs: Sequence[Settings]) -> list[str]:
    """List the settings that differ, in the order of the configs.

    Components have different settings. A setting that some runs lack, because their component has another name, differs
    only if it differs between the runs that have it.
    """
    known = [settings for settings in runs if settings]
    keys = dict.fromkeys(key for settings in known for key in settings)
    return [key for key in keys if _differs(key, known)]


def _differs(key: str, runs: Sequence[Settings]) -> bool:
    having = [settings for settings in runs if key in settings]
    lacking = [settings for settings in runs if key not in settings]
    if len({_text(settings, key) for settings in having}) > 1:
        return True
    return bool(lacking) and not any(
        {settings.get(name) for settings in having}.isdisjoint(settings.get(name) for settings in lacking)
        for name in _names_above(key)
    )


def _names_above(key: str) -> Iterator[str]:
    """Yield the settings that name the components of which a setting is a part, such as encoder.name."""
    parts = key.split(".")
    names = (".".join([*parts[:depth], "name"]) for depth in range(1, len(parts)))
    return (name for name in names if name != key)


def _text(settings: Settings, key: str) -> str:
    if key not in settings:
        return NONE
    value = settings[key]
    return printable(value if isinstance(value, str) else json.dumps(value, default=str))
