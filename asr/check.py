"""python -m asr.check PACKAGE: check the components of a package of your own, a plugin."""

from collections import Counter
from collections.abc import Sequence

from asr.base.settings.plugins import OURS, homes, use
from asr.base.text.numbers import counted
from asr.base.text.printable import printable
from asr.core.cli.command import run_command
from asr.core.cli.parser import CommandParser


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each component and check; return 1 if a check fails."""
    about = f"Check the components of a package, whose code runs, with the checks of asr's own ({OURS.package})."
    parser = CommandParser(prog="python -m asr.check", description=about)
    parser.add_argument("package", metavar="PACKAGE", help="dotted name of the package, such as mylab.speech")
    package = parser.parse_args(arguments).package
    if package not in (home.package for home in homes()):
        use([package], "PACKAGE")
    from asr.apps.check.package import examine
    from asr.apps.check.settings import settings_to_remove

    home = next(home for home in homes() if home.package == package)
    results: Counter[bool] = Counter()
    for component, check, problem in examine(home):
        results[problem == ""] += 1
        print(printable(f"{component}: {check}: {problem or 'passes'}"), flush=True)
    if home is not OURS and not results[False]:
        for line in settings_to_remove(home):
            print(printable(f"note: {line}"))
    print(f"{counted(results.total(), 'check')}, {results[False]} failed")
    return 1 if results[False] or not results else 0


if __name__ == "__main__":
    run_command(main)
