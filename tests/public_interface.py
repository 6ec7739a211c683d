"""The public interface as text: python -m tests.public_interface > tests/public_interface.txt."""

import argparse
import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

import asr
from asr.__main__ import COMMANDS
from asr.base.settings.plugins import homes
from asr.core.checkpoint.formats import FORMAT, KEY
from asr.core.data.index import FORMAT_NUMBER, SCHEMA
from asr.core.data.manifest import Utterance, write_manifest
from docs.pages.commands import OVERRIDES, parser_of

MEMBERS = {"Recognizer": ["to", "transcribe"]}  # other members, and the constructor, are internal
SNAPSHOT = Path(__file__).with_suffix(".txt")


def public_interface() -> str:
    """Return all public names, one per line, in sections."""
    sections = {
        "import asr": python_names(),
        "asr COMMAND": command_names(),
        "conf/": setting_names(),
        "bundle": iter([f"{KEY} {FORMAT}"]),
        "manifest": manifest_keys(),
        "index.arrow": iter([f"format {FORMAT_NUMBER.decode()}", *(f"{field.name} {field.type}" for field in SCHEMA)]),
    }
    return "\n".join(f"[{title}]\n" + "".join(f"{line}\n" for line in lines) for title, lines in sections.items())


def python_names() -> Iterator[str]:
    """Yield the exported names with their parameters and, for each class, its public members."""
    for name in dir(asr):
        value = getattr(asr, name)
        if not callable(value):
            yield name
            continue
        if isinstance(value, type) and issubclass(value, Exception):
            yield f"{name}, a {value.__base__.__name__}"
            continue
        yield name if name in MEMBERS else f"{name}{_parameters(value)}"
        if isinstance(value, type):
            for member in MEMBERS.get(name) or sorted({*vars(value), *getattr(value, "__annotations__", {})}):
                if not member.startswith("_"):
                    attribute = inspect.getattr_static(value, member, None)
                    yield f"{name}.{member}{_parameters(attribute) if inspect.isfunction(attribute) else ''}"


def _parameters(value: Any) -> str:
    """Return the names of the parameters; `name=` has a default, and names after * are keyword-only."""
    shown: list[str] = []
    for parameter in inspect.signature(value).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        if parameter.name != "self":
            shown.append(parameter.name + ("" if parameter.default is parameter.empty else "="))
    return f"({', '.join(shown)})"


def command_names() -> Iterator[str]:
    """Yield the commands, and their arguments, options and choices."""
    for command in sorted(name for commands in COMMANDS.values() for name in commands):
        yield command
        if command not in OVERRIDES:
            yield from _arguments(parser_of(command), command)


def _arguments(parser: argparse.ArgumentParser, command: str) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from _arguments(inner, f"{command} {name}")
        elif action.dest != "help":
            names = ", ".join(action.option_strings) or str(action.metavar or action.dest)
            choices = "" if action.choices is None else f" {{{','.join(map(str, action.choices))}}}"
            yield f"{command} {names}{choices}"


def setting_names() -> Iterator[str]:
    """Yield the files of conf/ and the settings in each, without their values."""
    files = {path.relative_to(home.conf): path for home in homes() for path in home.conf.rglob("*.yaml")}
    for file, path in sorted(files.items()):
        settings = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        name = file.with_suffix("").as_posix()
        yield name
        for key in _keys({key: value for key, value in settings.items() if key not in ("defaults", "hydra")}):
            yield f"{name} {key}"


def _keys(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def manifest_keys() -> Iterator[str]:
    """Yield all keys that a manifest line can have."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "manifest.jsonl"
        write_manifest(path, [Utterance("a.wav", 1.0, "text", "id", offset=0.0, speaker="speaker")])
        yield from sorted(json.loads(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    print(public_interface(), end="")
