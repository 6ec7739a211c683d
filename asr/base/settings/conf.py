"""Default settings, read from the files in conf/ of asr, of its apps and of the plugins."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asr.base.settings.plugins import OURS, homes
from asr.base.settings.rule import one_of
from asr.errors import InputError, reason_of, shown

CONF = OURS.conf


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


def default_settings(group: str, name: str) -> dict[str, Any]:
    """Read the settings of a component and of its parts from conf/<group>/<name>.yaml.

    Raises:
        InputError: the component does not exist, or its file is not a mapping in YAML.
    """
    settings, chosen = _read(group, name)
    parts: dict[str, dict[str, Any]] = {}
    for key, part in (item for entry in chosen for item in entry.items()):
        if key.startswith("override "):  # a setting outside of the component
            continue
        # The entry "/decode@first: beam" means that the setting `first` is the component conf/decode/beam.yaml.
        of_group, _, absolute = key.rpartition("@")
        parts[absolute] = default_settings(of_group.removeprefix("/") or f"{group}/{key}", part)
    return {**settings, **{key: part | settings.get(key, {}) for key, part in parts.items()}}


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
