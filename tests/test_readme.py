"""The commands in the READMEs are ones that the program understands."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, resolved, tone_corpus

RECIPES = sorted((ROOT / "recipes").glob("*/README.md"))
READMES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *RECIPES, *sorted((ROOT / "docs").glob("guide/*.md"))]


def commands(readme: Path) -> list[list[str]]:
    """What follows `-m` in each line of a README's code blocks, continued lines joined, comments cut."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = "\n".join(block for language, block in blocks if not language).replace("\\\n", " ").splitlines()
    modules = [line.split(" -m ", 1)[1] for line in lines if re.search(r"(python|torchrun).* -m ", line)]
    return [shlex.split(module, comments=True) for module in modules]


COMMANDS = [(readme.relative_to(ROOT).as_posix(), command) for readme in READMES for command in commands(readme)]
EXPERIMENTS = {"asr.train": "train", "asr.plan": "train", "asr.train_lm": "train_lm"}  # take overrides of these roots
TRAINING = [(name, *command) for name, command in COMMANDS if command[0] in EXPERIMENTS]
OTHERS = sorted({(command[0], word) for _, command in COMMANDS for word in command if command[0] not in EXPERIMENTS})


@pytest.mark.parametrize("training", TRAINING, ids=str)
def test_training_commands_compose(training: tuple[str, ...]) -> None:
    _, module, *overrides = training
    if "sweep=[optuna]" in overrides:
        pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="the extra optuna is not installed")
    given = [override.replace("$speaker", "theo") for override in overrides if override != "--multirun"]
    if "--multirun" in overrides:  # the first of its jobs
        given = [override.split(",")[0] for override in given]
    config = resolved(*given, root=EXPERIMENTS[module])
    assert config["run_dir"].startswith("runs/")


def help_of(*command: str) -> str:
    arguments = [sys.executable, "-m", *command, "--help"]
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("module", sorted({module for module, _ in OTHERS}))
def test_other_commands_exist_and_know_the_options_that_are_shown(module: str) -> None:
    shown = help_of(module)
    subcommands = re.search(r"^positional arguments:\n  \{([\w,]+)\}$", shown, re.MULTILINE)
    for name in subcommands[1].split(",") if subcommands else []:
        shown += help_of(module, name)
    options = {word for name, word in OTHERS if name == module and word.startswith("--")}
    assert all(re.search(rf"{option}\b", shown) for option in options), (options, shown)


def test_every_readme_shows_a_command() -> None:
    assert {name for name, _ in COMMANDS} == {readme.relative_to(ROOT).as_posix() for readme in READMES}


def test_the_encoder_in_the_readme_trains_and_transcribes(tones: Path, tmp_path: Path) -> None:
    """Its two files are all that is added to a copy of the package."""
    for folder in ("asr", "conf"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files = re.findall(r"^```(?:python|yaml)\n# (asr/\S+|conf/\S+)\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == ["asr/encoder/pooled.py", "conf/encoder/pooled.yaml"]
    for name, content in files:
        (tmp_path / name).write_text(content)
    overrides = [
        "encoder=pooled",
        "head=ctc",
        *tone_corpus(tones),
        "run_dir=run",
        "trainer.max_steps=3",
        "trainer.accelerator=cpu",
    ]
    for command in (["asr.train", *overrides], ["asr.transcribe", "run", str(tones / "test.jsonl")]):
        ended = subprocess.run(
            [sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "run" / "report.html").is_file()
