"""Check what has changed since the stored map, or without one since a commit: python -m tools.quick [COMMIT].

ruff checks everything; mypy checks the changed files. The tests are those that execute changed lines by the map of
`python -m tools.coverage_map`, and changed tests: the fastest tests of each line first, until they would take 20 % of
the seconds of all tests. Without a map, the tests that import the folder of a changed file run; COMMIT is by default
where the branch has left origin/main.
"""

import re
import subprocess
import sys
from collections.abc import Iterator

from tools.coverage_map import ROOT, CoverageMap, read_map

MAX_SHARE = 0.2  # of the seconds of all tests in the map
OF_DOCUMENTS = ["tests/test_documents.py"]
OF_STRUCTURE = ["tests/test_structure.py", "tests/test_floors.py", "tests/test_messages.py"]


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints."""
    ended = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return ended.stdout.splitlines()


def changes(commit: str) -> dict[str, set[int]]:
    """Return the numbers, in `commit`, of lines that have changed since then, and of both neighbours of added lines."""
    changed: dict[str, set[int]] = {path: set() for path in git("ls-files", "--others", "--exclude-standard")}
    path = ""
    for line in git("diff", "--unified=0", "--no-renames", commit):
        if line.startswith("--- ") or (line.startswith("+++ ") and line != "+++ /dev/null"):
            path = line[6:] if line[4:] != "/dev/null" else path
            changed.setdefault(path, set())
        elif hunk := re.match(r"@@ -(\d+)(?:,(\d+))? ", line):
            begin, number = int(hunk[1]), int(hunk[2] or 1)
            changed[path] |= set(range(begin, begin + number)) if number else {begin, begin + 1}
    return {path: lines for path, lines in changed.items() if path}


def base(given: list[str]) -> str:
    """Return the commit with which to compare without a map: where HEAD has left a given commit, or origin/main."""
    has_origin = git("branch", "--remotes", "--list", "origin/main")
    return git("merge-base", "HEAD", *(given or (["origin/main"] if has_origin else ["HEAD"])))[0]


def configured(path: str) -> str:
    """Return the module that a file of conf/ configures; other paths are returned as they are."""
    group = re.match(r"conf/(.+)/\w+\.yaml", path)
    if group and (ROOT / path).is_file():
        name = re.search(r"^name: (\w+)", (ROOT / path).read_text(), re.MULTILINE)
        floor = "core" if group[1] == "objective" else "components"
        return f"asr/{floor}/{group[1]}/{name[1]}.py" if name else path
    return path


def importing(path: str) -> list[str]:
    """Return the test files that import the folder of a module, or a module in no folder of asr/, or start it."""
    *folders, module = path.removesuffix(".py").split("/")
    imported = rf"(?:from|import) {'.'.join(folders)}\b"
    if len(folders) == 1:
        imported = rf"(?:from|import) {folders[0]}\.{module}\b|from {folders[0]} import .*\b{module}\b"
    started = rf"""(?:["']|-m ){".".join([*folders, module])}(?!\.|\w)"""
    pattern = re.compile(rf"^\s*(?:{imported})|{started}", re.MULTILINE)
    files = sorted((ROOT / "tests").glob("test_*.py"))
    return [f"tests/{file.name}" for file in files if pattern.search(file.read_text())]


def existing(test: str, changed: dict[str, set[int]]) -> str:
    """Return the id of a test in the map, without parameters if its file has changed; "" if the test is gone."""
    file, _, name = test.partition("::")
    if file not in changed:
        return test
    function = name.partition("[")[0]
    is_there = (ROOT / file).is_file() and f"def {function}(" in (ROOT / file).read_text()
    return f"{file}::{function}" if is_there else ""


def requests(changed: dict[str, set[int]], tests: CoverageMap) -> Iterator[list[str]]:
    """Return lists of tests, the fastest first: one for each changed line, and for a file without lines in the map."""
    for path, lines in changed.items():
        module = configured(path)
        by_line = tests.lines.get(module, {})
        of_lines = [by_line[line] for line in sorted(lines if module == path else by_line) if line in by_line]
        for executing in of_lines:
            fastest = sorted(executing, key=lambda test: tests.seconds[test])
            yield list(dict.fromkeys(found for test in fastest if (found := existing(test, changed))))
        if re.match(r"tests/test_\w+\.py", path):
            if not of_lines and (ROOT / path).is_file():
                yield [path]
        elif module.endswith(".py"):
            yield [test for test in OF_STRUCTURE if (ROOT / test).is_file()]
            if not of_lines and not tests.seconds:
                yield importing(module)
        else:
            yield OF_DOCUMENTS


def selection(lists: list[list[str]], seconds: dict[str, float]) -> tuple[list[str], int]:
    """Return the tests to run: of all lists in turn, until their time is over; and the number of tests left out."""
    budget = MAX_SHARE * sum(seconds.values()) if seconds else float("inf")
    by_file: dict[str, float] = {}
    for test, duration in seconds.items():
        by_file[test.partition("::")[0]] = by_file.get(test.partition("::")[0], 0.0) + duration
    selected: dict[str, None] = {}
    requested = {test for tests in lists for test in tests}
    for rank in range(max(map(len, lists), default=0)):
        for tests in lists:
            if rank < len(tests) and tests[rank] not in selected:
                duration = seconds.get(tests[rank], by_file.get(tests[rank], 0.0))
                if duration <= budget:
                    budget -= duration
                    selected[tests[rank]] = None
    return list(selected), len(requested - selected.keys())


def main() -> None:
    """Run the checks one after another; exit with the first status that is not 0."""
    without_map = CoverageMap(base(sys.argv[1:]), {}, {})
    tests = read_map() or without_map
    exists = subprocess.run(["git", "cat-file", "-e", f"{tests.commit}^{{commit}}"], cwd=ROOT, check=False)
    if exists.returncode != 0:  # git has said so
        print(f"the map's commit {tests.commit} is not in this repository, so the map is not used; run make map")
        tests = without_map
    changed = changes(tests.commit)
    typed = [
        path
        for path in changed
        if re.match(r"(asr|benchmarks|docs|examples|recipes|tools)/.*\.py", path) and (ROOT / path).is_file()
    ]
    chosen, left_out = selection(list(requests(changed, tests)), tests.seconds)
    since = f"{len(changed)} files changed since {tests.commit[:8]}"
    if tests is without_map:
        print(
            f"{since}: {len(chosen)} files of tests, because there is no map (make map): {' '.join(chosen)}", flush=True
        )
    else:
        print(f"{since}: {len(chosen)} tests; {left_out} left out for lack of time", flush=True)
    commands = [["ruff", "check"], ["ruff", "format", "--check"]]
    commands += [["mypy", *typed]] if typed else []
    commands += [["pytest", "-n", "2", "--hypothesis-profile=ci", *chosen]] if chosen else []
    for module, *arguments in commands:
        status = subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, check=False).returncode
        if status != 0:
            sys.exit(status)


if __name__ == "__main__":
    main()
