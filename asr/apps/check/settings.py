"""Agreement of a component's YAML file with its class, for the files of asr and of plugins."""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from asr.base.settings.conf import default_settings, names, own_settings
from asr.base.settings.plugins import OURS, Home
from asr.base.text.printable import listed
from asr.core.build import component, rules
from asr.errors import InputError

# Groups of components whose config chooses one of them, and groups whose config is a list of any number.
ONE = (
    "tokenizer",
    "features",
    "encoder",
    "prompt",
    "head",
    "decode",
    "adapter",
    "optimizer",
    "schedule",
    "objective",
    "token_model",
)
SEVERAL = ("augment", "metric", "callback")
GROUPS = (*ONE, *SEVERAL)


class Component(NamedTuple):
    """A YAML file of a component, conf/<group>/<name>.yaml."""

    group: str
    name: str

    @property
    def is_part(self) -> bool:
        """Whether it is a part of other components, such as a norm of encoders."""
        return "/" in self.group

    def __str__(self) -> str:
        return f"{self.group}/{self.name}"


def components(home: Home) -> list[Component]:
    """List the YAML files of components of a package."""
    paths = [path.relative_to(home.conf) for group in GROUPS for path in (home.conf / group).rglob("*.yaml")]
    return [Component(path.parent.as_posix(), path.stem) for path in sorted(paths)]


def in_no_group(home: Home) -> list[Path]:
    """List the YAML files of a package in a folder that is no group, for example because its name is misspelt."""
    paths = [path.relative_to(home.conf) for path in sorted(home.conf.rglob("*.yaml"))]
    return [path for path in paths if path.parts[0] not in GROUPS and not (OURS.conf / path.parts[0]).exists()]


def settings_of(file: Component) -> dict[str, Any]:
    """Read the settings of a component; a value that the part of an encoder leaves to the encoder is one encoder's."""
    settings = default_settings(*file)
    if file.is_part:
        whole, *path = file.group.split("/")
        of_wholes = [_at(default_settings(whole, name), path) for name in names(whole)]
        for key in [key for key, value in settings.items() if value == "???"]:
            settings[key] = next(values[key] for values in of_wholes if values.get(key, "???") != "???")
    return {"name": file.name, **settings} if file.group in SEVERAL else settings


def _at(settings: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    """Return the settings of a part of a component, or of one of its parts; {} if there is no such part."""
    for key in path:
        settings = settings.get(key) or {}
    return settings


def settings_to_remove(home: Home) -> Iterator[str]:
    """Yield a line for each setting that a part lacks, and that files of its whole, such as those of encoders, set."""
    for file in components(home):
        whole, *path = file.group.split("/")
        if not path:
            continue
        part, setting = ".".join(path), dict[str, list[str]]()
        for name in names(whole):
            for key, value in _at(own_settings(whole, name), path).items():
                if not isinstance(value, Mapping):
                    setting.setdefault(key, []).append(name)
        for key in sorted(setting.keys() - default_settings(*file).keys()):
            files = listed([f"{whole}={name}" for name in setting[key]])
            yield f"{file} has no {key}, which {files} set; with one of these, add ~{whole}.{part}.{key}"


def check_settings(file: Component, home: Home) -> None:
    """Check that the keys of a YAML file are the keyword-only parameters of its class, each with a rule."""
    settings = settings_of(file)
    cls = component(file.group, settings).func  # refuses missing classes, keys and values
    parameters = inspect.signature(cls).parameters.values()
    keys = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    bases = inspect.getmro(cast(type, cls))  # a class need not repeat the arguments of the class that it extends
    docs = "\n".join(inspect.getdoc(base) or "" for base in bases)
    documented = set(re.findall(r"^ +(\w+): ", docs, re.MULTILINE))
    parts = {key for key, value in settings.items() if isinstance(value, Mapping)}
    _refuse(
        file, "have a value in the YAML file and no default", {p.name for p in parameters if p.default is not p.empty}
    )
    _refuse(file, "be described under Args in the docstring of the class", keys - documented)
    _refuse(file, "be annotated with a rule of asr.base.settings.rule", keys - parts - rules(cls).keys())
    if file.group in SEVERAL:
        head = f"# @package {file.group}.{file.name}"
        if not (home.conf / f"{file}.yaml").read_text(encoding="utf-8").startswith(f"{head}\n"):
            raise InputError(f"conf/{file}.yaml must begin with the line {head}.")


def _refuse(file: Component, must: str, names: set[str]) -> None:
    if names:
        raise InputError(f"each parameter of {file} must {must}; wrong: {', '.join(sorted(names))}.")


def without_files(home: Home) -> Iterator[Component]:
    """Yield the components of a package without a YAML file: Python files that define a class with the file's name."""
    named = {(file.group, _class_file(file)) for file in components(home)}
    for group in GROUPS:
        folder = home.of(group).folder
        for path in sorted((folder / group).rglob("*.py")):
            classes = {
                node.name.lower() for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.ClassDef)
            }
            place = Component(path.parent.relative_to(folder).as_posix(), path.stem)
            if path.stem.replace("_", "") in classes and place not in named and names(place.group):
                yield place


def _class_file(file: Component) -> object:
    """Return the name of the Python file of a component; if its YAML file is faulty, that of the YAML file."""
    try:
        return settings_of(file).get("name")
    except InputError:
        return file.name
