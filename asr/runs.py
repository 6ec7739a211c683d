"""python -m asr.runs FOLDER...: print a table of training runs, with the significance of their differences."""

from collections.abc import Sequence
from pathlib import Path

from asr.base.system.files import real
from asr.core.cli.command import complain, run_command
from asr.core.cli.parser import CommandParser
from asr.errors import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of the runs in folders."""
    parser = CommandParser(
        prog="python -m asr.runs",
        description="Print a table of training runs, finished or not: settings that differ, error rates, significance.",
    )
    parser.add_argument(
        "folders", metavar="FOLDER", nargs="+", type=Path, help="run folder, or a folder up to three levels above runs"
    )
    parser.add_argument(
        "--format", choices=("text", "markdown", "latex"), default="text", help="latex needs the package booktabs"
    )
    parser.add_argument(
        "--sort",
        metavar="KEY",
        help="a test manifest (default: the first), valid, time, parameters, name, or a setting such as encoder.dim",
    )
    options = parser.parse_args(arguments)
    from asr.apps.runs.summary import summarize
    from asr.apps.runs.table import run_table

    runs = [summarize(run_dir, name) for run_dir, name in named_runs(options.folders)]
    print("\n".join(run_table(runs, options.format, options.sort)))
    return 0


def named_runs(folders: Sequence[Path]) -> list[tuple[Path, str]]:
    """Find the runs in folders; return each run folder once, with its name, which is its path in the given folder."""
    from asr.apps.runs.summary import DEPTH, find_runs
    from asr.core.run.names import CONFIG, EVENTS

    def on_error(error: OSError) -> None:
        complain(f"{error.filename} must be a folder that can be listed; {error.strerror}. Its runs are left out.")

    names: dict[Path, tuple[Path, str]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"FOLDER must be an existing folder; got {str(folder)!r}. Give a run_dir of asr.train.")
        for run_dir in find_runs(folder, on_error):
            below = run_dir if len(folders) > 1 else run_dir.relative_to(folder)
            names.setdefault(real(run_dir), (run_dir, str(below) if below.name else real(run_dir).name))
    if not names:
        must = f"FOLDER must contain runs, folders with {CONFIG} and {EVENTS}, at most {DEPTH} levels below it"
        given = ", ".join(repr(str(folder)) for folder in folders)
        raise InputError(f"{must}; found none in {given}. Give a run_dir, or a folder with several of them.")
    return list(names.values())


if __name__ == "__main__":
    run_command(main)
