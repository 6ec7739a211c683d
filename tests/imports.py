"""What the modules of asr and its tests import, read from their syntax trees."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ["base", "components", "core", "apps"]
# Commands of core: they work without the folder asr/apps, although some do more where an app is there.
COMMANDS_OF_CORE = {"align", "average", "evaluate", "merge", "model", "train", "transcribe"}


@cache
def modules(package: str) -> list[tuple[str, ast.Module]]:
    """Return the name (without the package) and the syntax tree of each module that is not an `__init__`."""
    return [
        (".".join(path.relative_to(ROOT / package).with_suffix("").parts), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name != "__init__.py"
    ]


@cache
def imported(tree: ast.Module) -> set[str]:
    """Return every module imported anywhere in a file, also in functions and under TYPE_CHECKING."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names.add(str(node.module))
            names |= {name for alias in node.names if is_module(name := f"{node.module}.{alias.name}")}
    return names


def is_module(name: str) -> bool:
    """Return whether a dotted name is a file of the checkout."""
    return _file(name).is_file()


def _file(name: str) -> Path:
    return ROOT.joinpath(*name.split(".")).with_suffix(".py")


def room(module: str) -> str:
    """Return the folder of a module on its floor, such as core/data; the name of a module on no floor."""
    return "/".join(module.split(".")[: 2 if module.split(".")[0] in FLOORS else 1])


@cache
def floors(path: Path) -> set[str]:
    """Return the floors that a test file needs: those that it imports, also by other files of the checkout.

    A command that the file starts by name, such as "asr.convert", counts as imported. What conftest imports does not.
    """
    seen: set[Path] = {ROOT / "tests" / "conftest.py"}
    waiting, found = [path], set[str]()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        names, files = _needed(path)
        found |= names
        waiting += [file for file in files if file not in seen]
    return found


@cache
def _needed(path: Path) -> tuple[frozenset[str], frozenset[Path]]:
    """Return the floors that a file imports itself, and the files outside of asr/ that it imports."""
    names = _named(path.read_text(encoding="utf-8"))
    found = {name.split(".")[1] for name in names if name.startswith("asr.")}
    commands = {name for name in found - set(FLOORS) if is_module(f"asr.{name}")}
    others = frozenset(_file(name) for name in names if not name.startswith("asr.") and is_module(name))
    return frozenset(found & set(FLOORS)).union(*map(_of_command, commands)), others


def _named(text: str) -> set[str]:
    """Return the modules that a text imports or starts; a regular expression, since each test run reads 350 files."""
    names = set(re.findall(r"(?:[\"']|-m )(asr\.\w+)(?![\w.])", text))
    for module, members in re.findall(r"^\s*from ([\w.]+) import (\([^)]*\)|[^\n]*)", text, re.MULTILINE):
        names |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", members))}
    return names | set(re.findall(r"^\s*import ([\w.]+)", text, re.MULTILINE))


@cache
def _of_command(name: str) -> frozenset[str]:
    """Return the floors of a command, but not the apps with which a command of core merely does more."""
    names = _named((ROOT / "asr" / f"{name}.py").read_text(encoding="utf-8"))
    found = {name.split(".")[1] for name in names if name.startswith("asr.")} & set(FLOORS)
    return frozenset(found - ({"apps"} if name in COMMANDS_OF_CORE else set()))
