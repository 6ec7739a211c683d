"""Default settings, read from the files in conf/ of asr, of its apps and of the plugins."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from asr.base.settings.plugins import OURS, homes
from asr.base.settings.rule import one_of
from asr.errors import InputError, reason_of, shown

CONF = OURS.conf
OVERRIDE = "override "  # begins an entry of a list of defaults that replaces another choice


def run_defaults(root: str = "train") -> dict[str, Any]:
    """Read the defaults of settings that belong to no component from conf/<root>.yaml and conf/trainer/default.yaml."""
    import yaml

    settings: dict[str, Any] = yaml.safe_load((CONF / f"{root}.yaml").read_text(encoding="utf-8"))
    trainer: dict[str, Any] = yaml.safe_load((CONF / "trainer" / "default.yaml").read_text(encoding="utf-8"))
    del settings["defaults"], settings["hydra"]
    return settings | {"trainer": trainer | settings.get("trainer", {})}


def names(group: str) -> list[str]:
    """List the files of conf/<group>, without their suffix."""
    return sorted(path.stem for path in files(group))


def files(group: str) -> list[Path]:
    """List the files of conf/<group> of asr, of its apps and of the plugins."""
    return [path for home in homes() for path in sorted((home.conf / group).glob("*.yaml"))]


def default_settings(group: str, name: str, chosen: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Read the settings of a component and of its parts from conf/<group>/<name>.yaml.

    Args:
        group: group of the component.
        name: name of its file.
        chosen: names of parts that replace those of the file, by path, such as "attention" or "block/attention".

    Raises:
        InputError: the component does not exist, or its file is not a mapping in YAML.
    """
    settings, entries = _read(group, name)
    named = {key: part for entry in entries for key, part in entry.items()}
    # A choice outside of the component, such as "override /features", is ignored: no part has this path.
    chosen = {**{key.removeprefix(OVERRIDE): of for key, of in named.items() if key.startswith(OVERRIDE)}, **chosen}
    parts: dict[str, dict[str, Any]] = {}
    for key, part in named.items():
        if key.startswith(OVERRIDE):
            continue
        # The entry "/decode@first: beam" means that the setting `first` is the component conf/decode/beam.yaml.
        of_group, _, absolute = key.rpartition("@")
        below = {key.removeprefix(f"{absolute}/"): of for key, of in chosen.items() if key.startswith(f"{absolute}/")}
        of_part = of_group.removeprefix("/") or f"{group}/{key}"
        parts[absolute] = default_settings(of_part, chosen.get(absolute, part), below)
    return _merged(parts, settings)


def _merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with changes, also within sections that both have."""
    sections = [key for key in changes.keys() & settings.keys() if isinstance(settings[key], Mapping)]
    both = {key: _merged(settings[key], changes[key]) for key in sections if isinstance(changes[key], Mapping)}
    return {**changes, **{key: value for key, value in settings.items() if key not in changes}, **both}


def own_settings(group: str, name: str) -> dict[str, Any]:
    """Read the settings that conf/<group>/<name>.yaml itself sets, without those of the files of its parts."""
    return _read(group, name)[0]


def _read(group: str, name: str) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Read conf/<group>/<name>.yaml; return its settings, and the entries of its defaults that choose a component."""
    import yaml

    one_of(*names(group)).check(f"{group}.name", name)
    path = next(path for path in files(group) if path.stem == name)
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise InputError(f"{path} must be YAML; {reason_of(error)}.") from None
    if not isinstance(settings, dict):
        raise InputError(f"{path} must map settings to values; got {shown(settings)}.")
    return settings, [entry for entry in settings.pop("defaults", []) if isinstance(entry, dict)]


def overridden(settings: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the changes whose keys exist in the settings or in those of parts; ignore the keys of other components."""
    changed = {key: changes[key] for key in settings.keys() & changes.keys() if not isinstance(changes[key], dict)}
    parts = {key: overridden(settings[key], changes[key]) for key in settings.keys() & changes.keys() - changed.keys()}
    return settings | changed | parts
