"""Writes the report on all steps, gpu.md and gpu.json."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.base.system.files import write_whole_text
from benchmarks.gpu.goals import NOT_RUN, judged
from benchmarks.gpu.steps import LOG, Step
from benchmarks.machine import PACKAGES

OUTCOME = "outcome.json"
TEST = re.compile(r"^(tests/\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)", re.MULTILINE)
MAX_LOG_CHARACTERS = 20_000  # gpu.json has only the end of each log


def write_report(
    report_dir: Path, output_dir: Path, facts: Mapping[str, object], command: str, steps: Mapping[str, Step]
) -> None:
    """Write gpu.md, a section of a document, and gpu.json: the goals, the steps, and each step's tables.

    Args:
        report_dir: folder of the two files.
        output_dir: folder of the steps' folders.
        facts: the conditions, from `benchmarks.machine.about`.
        command: the command that measured.
        steps: the steps by name.
    """
    outcomes = {name: read(output_dir / name / OUTCOME) for name in steps}
    results = {name: rows for name, step in steps.items() if (rows := rows_of(output_dir / name, step))}
    logs = {name: log_of(output_dir / name) for name in steps}
    verdicts = [dict(zip(("goal", "target", "reached", "met"), row, strict=True)) for row in judged(results)]
    packages = ", ".join(f"{package} {facts[package]}" for package in PACKAGES if package in facts)
    lines = [f"## {facts['name']}, {facts['date']}", "", "```", command, "```", "", f"With {packages}.", ""]
    if str(facts["name"]).count(" x "):  # the name of a CPU ends with its number of cores
        lines += ["On a CPU all sizes but those of the training on speech are tiny, and their figures meaningless.", ""]
    lines += table(verdicts)
    step_rows = [
        {"step": name, "measures": step.description, "outcome": outcomes[name].get("outcome", NOT_RUN)}
        | {"seconds": f"{outcomes[name].get('seconds', 0):.0f}"}
        for name, step in steps.items()
    ]
    lines += ["", "### Steps", "", *table(step_rows)]
    for name, step in steps.items():
        if tables := tables_of(logs[name]):
            lines += ["", f"### {step.description[0].upper()}{step.description[1:]}", "", *tables]
    report_dir.mkdir(parents=True, exist_ok=True)
    write_whole_text(report_dir / "gpu.md", "\n".join(lines) + "\n")
    content = {"about": facts, "goals": verdicts, "steps": outcomes, "results": results}
    log_ends = {name: log[-MAX_LOG_CHARACTERS:] for name, log in logs.items()}
    write_whole_text(report_dir / "gpu.json", json.dumps(content | {"logs": log_ends}, indent=1) + "\n")


def tables_of(log: str) -> list[str]:
    """Return the tables in a step's output, separated by empty lines."""
    rows, lines = list[str](), [line for line in log.splitlines() if line.startswith("|")]
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        if rows and following.startswith("| ---"):
            rows.append("")
        rows.append(line)
    return rows


def table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Format rows as the lines of a Markdown table."""
    cells = [[*rows[0]], ["---"] * len(rows[0]), *([*row.values()] for row in rows)]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells]


def read(path: Path) -> dict[str, Any]:
    """Read a JSON file; return an empty dict if it does not exist."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def rows_of(folder: Path, step: Step) -> list[dict[str, Any]]:
    """Read a step's rows, from the JSON file of `Results` or, for pytest, from the log with one row per test."""
    if step.result != LOG:
        return list(read(folder / step.result).get("rows", []))
    return [{"test": test, "outcome": outcome.lower()} for test, outcome in TEST.findall(log_of(folder))]


def log_of(folder: Path) -> str:
    """Read the output that a step has printed so far."""
    path = folder / LOG
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
