"""The texts of errors as a file, whose diff shows what changes: python -m tests.messages > tests/messages.txt."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

SNAPSHOT = Path(__file__).with_suffix(".txt")
CALLS = ("Rule", "error")  # calls whose texts become errors, beside our functions; error is argparse's method
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
MAX_PLACEHOLDER = 30  # characters; a longer expression in an f-string is written as {}


def messages() -> str:
    """Return the parts of error messages in asr/ and recipes/, by function."""
    paths = {path.relative_to(ROOT): path for folder in ("asr", "recipes") for path in (ROOT / folder).rglob("*.py")}
    modules = {".".join(name.with_suffix("").parts): ast.parse(path.read_bytes()) for name, path in paths.items()}
    functions = [node for module in modules.values() for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
    calls = {*CALLS, *(function.name for function in functions if _raises_its_argument(function))}
    lines = []
    for module in sorted(modules):
        for scope, nodes in _scopes(module, modules[module].body):
            if texts := dict.fromkeys(text for text in _error_texts(nodes, calls) if " " in text.strip()):
                lines += [f"[{scope}]", *(repr(text)[1:-1] for text in texts), ""]
    return "\n".join(lines)


def _raises_its_argument(function: ast.FunctionDef) -> bool:
    arguments = [argument for argument in ast.walk(function.args) if isinstance(argument, ast.arg)]
    texts = {
        argument.arg for argument in arguments if argument.annotation and ast.unparse(argument.annotation) == "str"
    }
    return any(isinstance(node, ast.Raise) and _names(node) & texts for node in ast.walk(function))


def _scopes(name: str, body: list[ast.stmt]) -> Iterator[tuple[str, list[ast.AST]]]:
    """Yield the name and the nodes of a module or class, and of each function and class in it."""
    yield name, [node for child in body if not isinstance(child, SCOPES) for node in ast.walk(child)]
    for child in body:
        if isinstance(child, ast.ClassDef):
            yield from _scopes(f"{name}.{child.name}", child.body)
        elif isinstance(child, SCOPES):
            yield f"{name}.{child.name}", list(ast.walk(child))


def _error_texts(nodes: list[ast.AST], calls: set[str]) -> Iterator[str]:
    """Yield the texts in raised errors, and in the variables that these errors use."""
    pending: list[ast.AST] = [node for node in nodes if isinstance(node, ast.Raise)]
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", None)) in calls:
            pending += [*node.args, *node.keywords]
    assigned = [node for node in nodes if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr)]
    while pending:
        yield from _texts(node := pending.pop(0))
        for other in [other for other in assigned if _names(node) & _names(other, ast.Store)]:
            assigned.remove(other)
            pending.append(other)


def _names(node: ast.AST, context: type[ast.expr_context] = ast.expr_context) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, context)}


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        yield "".join(map(_part, node.values))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def _part(part: ast.expr) -> str:
    if isinstance(part, ast.FormattedValue):
        text = f"{{{ast.unparse(part.value)}}}"
        return text if len(text) <= MAX_PLACEHOLDER else "{}"
    return part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else ""


if __name__ == "__main__":
    print(messages(), end="")
