"""Run `make test` under coverage, and store which tests execute which lines: python -m tools.coverage_map.

Imports do not show this: YAML names the components that a test builds, and tests start processes. Each started process
is measured, too, and counts for the test that started it; a killed process leaves no data. A fixture of a whole session
counts for the first test that requests it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "coverage"
MAP = ROOT / "build" / "coverage_map.json"
CONFIG = """[run]
source = {folders}
data_file = {data}
parallel = true
concurrency = multiprocessing, thread
patch = subprocess, _exit
core = ctrace
context = ${{PYTEST_CURRENT_TEST-}}
disable_warnings = no-data-collected, module-not-imported, module-not-measured, couldnt-parse
"""


class CoverageMap(NamedTuple):
    """Which tests executed which lines of a commit.

    Attributes:
        commit: the commit.
        seconds: duration of each test that passed, with its fixtures, by its id.
        lines: ids of the tests that executed a line, by path (relative to the checkout) and line number.
    """

    commit: str
    seconds: dict[str, float]
    lines: dict[str, dict[int, list[str]]]


def read_map() -> CoverageMap | None:
    """Return the stored map; None if there is none."""
    if not MAP.is_file():
        return None
    stored = json.loads(MAP.read_text())
    tests = list(stored["seconds"])
    lines = {
        path: {int(line): [tests[number] for number in numbers] for line, numbers in by_line.items()}
        for path, by_line in stored["lines"].items()
    }
    return CoverageMap(stored["commit"], stored["seconds"], lines)


# ---- as a plugin of pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    from coverage import Coverage

    if (measured := Coverage.current()) is not None:
        measured.switch_context(item.nodeid)
    return (yield)


SECONDS: dict[str, float] = {}
FAILED: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    SECONDS[report.nodeid] = SECONDS.get(report.nodeid, 0.0) + report.duration
    if report.outcome != "passed":
        FAILED.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        passed = {test: round(seconds, 3) for test, seconds in SECONDS.items() if test not in FAILED}
        (FOLDER / "seconds.json").write_text(json.dumps(passed))


# ---- as a program


def _store() -> None:
    from coverage import CoverageData

    seconds = json.loads((FOLDER / "seconds.json").read_text())
    numbers = {test: number for number, test in enumerate(seconds)}
    data = CoverageData(str(FOLDER / "data"))
    data.read()
    lines: dict[str, dict[int, list[int]]] = {}
    for file in data.measured_files():
        by_line = {}
        for line, contexts in data.contexts_by_lineno(file).items():
            # "the test that started this process (phase)|the test that was running"; each part may be absent
            tests = {re.sub(r" \(\w+\)$", "", context.rpartition("|")[2]) for context in contexts}
            if executed := sorted(numbers[test] for test in tests & numbers.keys()):
                by_line[line] = executed
        lines[str(Path(file).relative_to(ROOT))] = by_line
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    MAP.write_text(json.dumps({"commit": commit.stdout.strip(), "seconds": seconds, "lines": lines}))
    num_lines = sum(map(len, lines.values()))
    print(f"{len(seconds)} tests, {sum(seconds.values()):.0f} s, {num_lines} lines: {MAP.relative_to(ROOT)}")


def main() -> None:
    """Measure the tests, with the options of pytest in sys.argv, and store the map."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    folders = "\n    ".join(str(ROOT / name) for name in ("asr", "examples", "recipes", "tests"))
    rc_file = FOLDER / "rc"
    rc_file.write_text(CONFIG.format(folders=folders, data=FOLDER / "data"))
    environment = {**os.environ, "COVERAGE_PROCESS_START": str(rc_file), "OMP_WAIT_POLICY": "passive"}
    options = ["-p", "tools.coverage_map", "-n", "2", "--hypothesis-profile=ci", *sys.argv[1:]]
    subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT, env=environment, check=False)
    combine = [sys.executable, "-m", "coverage", "combine", "--quiet", f"--rcfile={rc_file}"]
    subprocess.run(combine, cwd=ROOT, check=True)
    _store()


if __name__ == "__main__":
    main()
