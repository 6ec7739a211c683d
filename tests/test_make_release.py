"""make release: what must hold before a version is tagged, and the notes of its release page."""

import subprocess
from pathlib import Path

import pytest

from asr import __version__
from asr.errors import InputError
from tests.conftest import ROOT
from tests.refusals import refused
from tools import release

CHANGELOG = """# Changelog

## Unreleased

### Added

- An encoder.

## 0.1.0 - 2026-01-01

- The first version.
"""
PASSES, FAILS = ["true"], ["false"]


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clean checkout of main, whose changelog has one unreleased change and a version 0.1.0."""
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "config", "user.name", "a")
    git(tmp_path, "config", "user.email", "a@b")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def test_the_tag_is_on_a_commit_whose_changelog_has_the_version_and_carries_its_notes(checkout: Path) -> None:
    release.release(checkout, "0.2.0", PASSES)
    changelog = git(checkout, "show", "v0.2.0:CHANGELOG.md")
    assert list(release.sections(changelog)) == ["Unreleased", "0.2.0", "0.1.0"]
    assert release.notes(changelog, "0.2.0") == "### Added\n\n- An encoder.\n"
    assert git(checkout, "tag", "--list", "--format=%(contents)", "v0.2.0").strip() == "### Added\n\n- An encoder."
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "rev-parse", "v0.2.0^{commit}") == git(checkout, "rev-parse", "HEAD")


def test_what_stands_in_the_way_of_a_release_is_named_and_nothing_is_tagged(checkout: Path) -> None:
    with refused(InputError, "false must succeed"):
        release.release(checkout, "0.2.0", FAILS)
    with refused(InputError, "CHANGELOG.md ... 0.1.0", cure="asr/__init__.py"):
        release.release(checkout, "0.1.0", PASSES)
    git(checkout, "tag", "v0.3.0")
    with refused(InputError, "v0.3.0", cure="asr/__init__.py"):
        release.release(checkout, "0.3.0", PASSES)
    (checkout / "new.txt").touch()
    with refused(InputError, "main ... uncommitted ... new.txt"):
        release.release(checkout, "0.2.0", PASSES)
    (checkout / "new.txt").unlink()
    git(checkout, "switch", "--quiet", "--create", "other")
    with refused(InputError, "main ... other"):
        release.release(checkout, "0.2.0", PASSES)
    git(checkout, "switch", "--quiet", "main")
    release.release(checkout, "0.2.0", PASSES)
    with refused(InputError, "CHANGELOG.md ... Unreleased"):  # nothing has changed since
        release.release(checkout, "0.4.0", PASSES)
    assert git(checkout, "tag", "--list").split() == ["v0.2.0", "v0.3.0"]


def test_the_changelog_of_this_version_can_be_released() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert __version__ in release.sections(changelog) or release.with_section(changelog, __version__, "2026-01-01")
