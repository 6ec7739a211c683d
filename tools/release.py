"""Check, build and tag the version in asr/__init__.py: make release.

The changes under "Unreleased" in CHANGELOG.md become the section of the version, and the notes of the release, which
`python -m tools.release --notes v0.1.0` prints. Nothing leaves the machine: the last line names the command that
publishes the version.
"""

import argparse
import re
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from asr import __version__
from asr.core.cli.command import run_command
from asr.errors import InputError, one_line
from tools.coverage_map import ROOT

UNRELEASED = "## Unreleased\n"


def sections(changelog: str) -> dict[str, str]:
    """Return the text of each section of the changelog by its version; "Unreleased" is one of them."""
    parts = re.split(r"^## (\S+).*\n", changelog, flags=re.MULTILINE)[1:]
    return {version: text.strip() for version, text in zip(parts[::2], parts[1::2], strict=True)}


def notes(changelog: str, version: str) -> str:
    """Return the notes of a version: its section of the changelog.

    Raises:
        InputError: the changelog has no section of this version, or the section is empty.
    """
    of_version = sections(changelog).get(version, "")
    if not of_version:
        raise InputError(f"CHANGELOG.md must have changes under '## {version}'; there are none. Add them.")
    return of_version + "\n"


def with_section(changelog: str, version: str, date: str) -> str:
    """Return the changelog with its unreleased changes as the section of a version."""
    notes(changelog, "Unreleased")
    if version in sections(changelog):
        raise InputError(f"CHANGELOG.md must not have '## {version}' yet. Set the next version in asr/__init__.py.")
    return changelog.replace(UNRELEASED, f"{UNRELEASED}\n## {version} - {date}\n", 1)


def git(folder: Path, *arguments: str) -> str:
    """Return what git prints."""
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def release(folder: Path, version: str, check: Sequence[str]) -> None:
    """Run `check` in a clean checkout of main, commit the changelog with the section of `version`, and tag the commit.

    Raises:
        InputError: the checkout has changes or another branch, the version has a tag or a section, nothing is
            unreleased, or the check fails.
    """
    tag, path = f"v{version}", folder / "CHANGELOG.md"
    state = git(folder, "status", "--porcelain", "--branch").splitlines()
    if state[0].split("...")[0] != "## main" or state[1:]:
        must = "A release needs the branch main without uncommitted changes"
        raise InputError(f"{must}; git status --short --branch shows {one_line(' | '.join(state))}.")
    if git(folder, "tag", "--list", tag):
        raise InputError(f"{tag} must not be a tag yet. Set the next version in asr/__init__.py and CITATION.cff.")
    released = with_section(path.read_text(encoding="utf-8"), version, datetime.now(UTC).date().isoformat())
    if subprocess.run(check, cwd=folder, check=False).returncode != 0:
        raise InputError(f"{' '.join(check)} must succeed before a release; it failed. Nothing was tagged.")
    path.write_text(released, encoding="utf-8")
    git(folder, "commit", "--quiet", "--message", f"Release {version}", "CHANGELOG.md")
    # --cleanup: the headings of the notes begin with "#", which git would take for comments.
    git(folder, "tag", "--annotate", "--cleanup=whitespace", tag, "--message", notes(released, version))
    print(f"{tag} is tagged. This publishes it: git push origin main {tag}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--notes", metavar="TAG", help="only print the notes of this tag, for the release page")
    options = parser.parse_args(arguments)
    if options.notes:
        changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        print(notes(changelog, options.notes.removeprefix("v")), end="")
    else:
        release(ROOT, __version__, ["make", "test", "dist"])
    return 0


if __name__ == "__main__":
    run_command(main)
