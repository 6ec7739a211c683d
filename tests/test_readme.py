"""The commands in the READMEs are ones that the program understands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, resolved

READMES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "recipes").glob("*/README.md"))]


def commands(readme: Path) -> list[list[str]]:
    """What follows `-m` in each line of a README's code blocks, continued lines joined, comments cut."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = "\n".join(block for language, block in blocks if not language).replace("\\\n", " ").splitlines()
    modules = [line.split(" -m ", 1)[1] for line in lines if re.search(r"(python|torchrun).* -m ", line)]
    return [shlex.split(module, comments=True) for module in modules]


COMMANDS = [(readme.relative_to(ROOT).as_posix(), command) for readme in READMES for command in commands(readme)]
EXPERIMENTS = ("asr.train", "asr.plan")  # take overrides
TRAINING = [(name, command[1:]) for name, command in COMMANDS if command[0] in EXPERIMENTS]
OTHERS = sorted({(command[0], word) for _, command in COMMANDS for word in command if command[0] not in EXPERIMENTS})


@pytest.mark.parametrize(("readme", "overrides"), TRAINING, ids=str)
def test_training_commands_compose(readme: str, overrides: list[str]) -> None:
    given = [override.replace("$speaker", "theo") for override in overrides if override != "--multirun"]
    if "--multirun" in overrides:  # the first of its jobs
        given = [override.split(",")[0] for override in given]
    config = resolved(*given)
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
