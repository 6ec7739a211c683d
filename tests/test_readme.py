"""The commands in the READMEs are ones that the program understands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, resolved

READMES = [ROOT / "README.md", *sorted((ROOT / "recipes").glob("*/README.md"))]


def commands(readme: Path) -> list[list[str]]:
    """Every `python -m ...` line of a README's code blocks, continued lines joined, comments cut."""
    blocks = re.findall(r"^```\n(.*?)^```", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[2:] for line in map(str.strip, lines) if line.startswith("python -m ")]


COMMANDS = [(readme.relative_to(ROOT).as_posix(), command) for readme in READMES for command in commands(readme)]
TRAINING = [(name, command[1:]) for name, command in COMMANDS if command[0] == "asr.train"]
OTHERS = sorted({(command[0], word) for _, command in COMMANDS for word in command if command[0] != "asr.train"})


@pytest.mark.parametrize(("readme", "overrides"), TRAINING, ids=str)
def test_training_commands_compose(readme: str, overrides: list[str]) -> None:
    config = resolved(*(override.replace("$speaker", "theo") for override in overrides))
    assert config["run_dir"].startswith("runs/")


@pytest.mark.parametrize("module", sorted({module for module, _ in OTHERS}))
def test_other_commands_exist_and_know_the_options_that_are_shown(module: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    options = {word for name, word in OTHERS if name == module and word.startswith("--")}
    assert all(re.search(rf"{option}\b", shown) for option in options), (options, shown)


def test_every_readme_shows_a_command() -> None:
    assert {name for name, _ in COMMANDS} == {readme.relative_to(ROOT).as_posix() for readme in READMES}
