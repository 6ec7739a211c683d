"""What asr.apps takes from asr.core, as text: python -m tests.core_interface > tests/core_interface.txt."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SNAPSHOT = Path(__file__).with_suffix(".txt")


def core_interface() -> str:
    """Return the names of core that apps use, one per line: `core.<folder>.<module> <name>`."""
    used = {line for path in sorted((ROOT / "asr" / "apps").rglob("*.py")) for line in names_of_core(path)}
    return "".join(f"{line}\n" for line in sorted(used))


def names_of_core(path: Path) -> Iterator[str]:
    """Yield the names of core that a file imports, or reads from a module of core that it imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    modules: dict[str, str] = {}  # modules of core, by the file's name for each
    for node in imports:
        module = str(node.module)
        if f"{module}.".startswith("asr.core."):
            for alias in node.names:
                name = f"{module}.{alias.name}".removeprefix("asr.")
                if (ROOT / "asr" / name.replace(".", "/")).with_suffix(".py").is_file():
                    modules[alias.asname or alias.name] = name
                else:
                    yield f"{module.removeprefix('asr.')} {alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield f"{modules[node.value.id]} {node.attr}"
        if isinstance(node, ast.Import):
            for alias in node.names:
                assert not alias.name.startswith("asr."), f"{path}: write `from ... import` for {alias.name}"


if __name__ == "__main__":
    print(core_interface(), end="")
