"""Plant faults, and see whether a test fails: python -m tools.mutants [--seed 1] [--number 60] > mutants.txt.

Needs the map of `python -m tools.coverage_map`. Each fault changes one operator or constant of asr/ in a line that a
test executes, in a clone of the map's commit; then the fastest eight tests of this line run until one fails. Faults are
chosen by a hash of their line's text, so that most of them remain after other lines have changed. A survivor shows a
missing test, or a change that has no effect (mark it by hand).
"""

import argparse
import ast
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tools.coverage_map import ROOT, CoverageMap, read_map

MAX_TESTS = 8
MAX_SECONDS = 90
RESULTS = {0: "SURVIVED", 1: "detected", 2: "detected"}  # by pytest's exit status; 2: a test file cannot be imported
SWAPS = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "is": "is not",
    "is not": "is",
    "in": "not in",
    "not in": "in",
    "and": "or",
    "or": "and",
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "//": "*",
    "%": "*",
}


class Fault(NamedTuple):
    """A changed expression of one line."""

    path: str
    line: int
    begin: int  # bytes of the line that are replaced
    end: int
    text: str


def faults(path: str, source: bytes, executed: set[int]) -> Iterator[Fault]:
    """Return all possible faults in the executed lines of a file; operators after constants."""
    lines, operands = source.splitlines(), []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare(left=left, comparators=[right]) | ast.BinOp(left=left, right=right):
                operands.append((left, right))
            case ast.BoolOp(values=[left, right, *_]):
                operands.append((left, right))
            case ast.Constant(value=bool() | int() | float() as value) if node.lineno in executed:
                changed = repr(not value if isinstance(value, bool) else value + 1)
                yield Fault(path, node.lineno, node.col_offset, node.end_col_offset or 0, changed)
    for left, right in operands:
        begin, end = left.end_col_offset or 0, right.col_offset
        if left.end_lineno == right.lineno and right.lineno in executed:
            operator = lines[right.lineno - 1][begin:end].decode().strip()
            if operator in SWAPS:  # not if it includes a parenthesis
                yield Fault(path, right.lineno, begin, end, f" {SWAPS[operator]} ")


def chosen(tests: CoverageMap, clone: Path, seed: int, number: int) -> list[Fault]:
    """Return the faults with the smallest hashes, at most one per line of text."""
    by_hash: dict[bytes, Fault] = {}
    for path, lines in sorted(tests.lines.items()):
        if path.startswith("asr/"):
            source = (clone / path).read_bytes()
            for fault in faults(path, source, set(lines)):
                text = b"%d %s" % (seed, source.splitlines()[fault.line - 1].strip())
                by_hash[hashlib.sha256(text).digest()] = fault
    return [by_hash[key] for key in sorted(by_hash)[:number]]


def planted(fault: Fault, clone: Path, tests: CoverageMap) -> str:
    """Plant a fault in the clone, run tests, and remove the fault; return the result in one line."""
    file = clone / fault.path
    original = file.read_bytes()
    lines = original.splitlines(keepends=True)
    line = lines[fault.line - 1]
    changed = line[: fault.begin] + fault.text.encode() + line[fault.end :]
    file.write_bytes(b"".join([*lines[: fault.line - 1], changed, *lines[fault.line :]]))
    fastest = sorted(tests.lines[fault.path][fault.line], key=lambda test: tests.seconds[test])[:MAX_TESTS]
    environment = {**os.environ, "PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--hypothesis-profile=ci", "-n", "0"]
    begin = time.monotonic()
    run = subprocess.Popen(
        [*command, *fastest],
        cwd=clone,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        result = RESULTS.get(run.wait(MAX_SECONDS), "NOT RUN")
    except subprocess.TimeoutExpired:
        result = "detected (timeout)"
    with suppress(ProcessLookupError):  # the tests' own processes
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    file.write_bytes(original)
    seconds = time.monotonic() - begin
    place = f"{fault.path}:{fault.line}: {line.decode().strip()}  ->  {changed.decode().strip()}"
    return f"{result:18} {seconds:4.0f} s  {place}"


def main() -> None:
    """Plant the faults one after another, and print a line for each and their number."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=60)
    options = parser.parse_args()
    tests = read_map()
    assert tests is not None, "run python -m tools.coverage_map first"
    with tempfile.TemporaryDirectory(dir=ROOT.parent) as folder:  # beside the checkout, as ../shared is
        clone = Path(folder, "asr")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        subprocess.run(["git", "checkout", "--quiet", tests.commit], cwd=clone, check=True)
        (Path(folder) / "shared").symlink_to(ROOT.parent / "shared")
        results = []
        for number, fault in enumerate(chosen(tests, clone, options.seed, options.number), 1):
            results.append(planted(fault, clone, tests))
            print(results[-1], flush=True)
            print(f"{number} of {options.number}", file=sys.stderr)
    survivors = sum(result.startswith("SURVIVED") for result in results)
    print(f"{len(results)} faults, {survivors} survived")


if __name__ == "__main__":
    main()
