"""The program accepts the commands in the documents."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT, resolved, tone_corpus
from tests.documents import DOCUMENTS, WITH_COMMANDS, code_blocks, commands, name_of
from tests.forked import run_module

GUIDE = ROOT / "docs" / "guide" / "extend.md"
COMMANDS = [(name_of(document), command) for document in DOCUMENTS for command in commands(document)]
# Commands that take overrides, each with the name of its root config in conf/.
EXPERIMENTS = {"asr.train": "train", "asr.plan": "train", "asr.doctor": "train", "asr.train_lm": "train_lm"}
# These commands need the files that docs/guide/extend.md shows.
POOLED = ["asr.train", "encoder=pooled", "head=ctc", "run_dir=runs/pooled"]
SCALED = ["asr.train", "plugins=[mylab.speech]", "head=scaled_ctc", "run_dir=runs/scaled"]
FILLED = ["asr.train", "plugins=[mylab.speech]", "objective=reconstruction", "run_dir=runs/filled"]
PENALISED = [*SCALED[:2], "objective=confidence_penalty", "head=ctc", "run_dir=runs/penalised"]
OBJECTIVES = (PENALISED, FILLED)
IN_GUIDE = (POOLED, SCALED, *OBJECTIVES)
# Further overrides in the guide, for the second command.
ADDED = [
    *("encoder=pooled", "augment=[speed_perturb,hum]", "decode=confident"),
    *("metric=[empty_texts]", "callback=[best_loss]"),
]
TRAINING = [(name, *command) for name, command in COMMANDS if command[0] in EXPERIMENTS and command not in IN_GUIDE]
OTHERS = sorted({(command[0], word) for _, command in COMMANDS for word in command if command[0] not in EXPERIMENTS})


@pytest.mark.parametrize("training", TRAINING, ids=str)
def test_the_overrides_of_the_training_commands_in_the_documents_are_valid(training: tuple[str, ...]) -> None:
    _, module, *overrides = training
    if "sweep=[optuna]" in overrides:
        pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="the extra optuna is not installed")
    given = [override.replace("$speaker", "theo") for override in overrides if override != "--multirun"]
    if "--multirun" in overrides:  # only the first job is checked
        given = [override.split(",")[0] for override in given]
    config = resolved(*given, root=EXPERIMENTS[module])
    assert config["run_dir"].startswith("runs/")


@cache
def help_of(*command: str) -> str:
    ended = run_module(*command, "--help")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("module", sorted({module for module, _ in OTHERS}))
def test_other_commands_exist_and_accept_the_options_in_the_documents(module: str) -> None:
    shown = help_of(module)
    subcommands = re.search(r"^positional arguments:\n  \{([\w,]+)\}$", shown, re.MULTILINE)
    for name in subcommands[1].split(",") if subcommands else []:
        shown += help_of(module, name)
    options = {word for name, word in OTHERS if name == module and word.startswith("--")}
    assert all(re.search(rf"{option}\b", shown) for option in options), (options, shown)


def test_every_document_shows_a_command() -> None:
    assert {name for name, _ in COMMANDS} >= {name_of(document) for document in WITH_COMMANDS}


@pytest.mark.parametrize(
    ("training", "added", "copied", "begin", "options"),
    [
        (POOLED, [], ("asr", "conf"), ("asr/", "conf/"), []),  # a copy of the package gets the files
        (SCALED, ADDED, (), ("mylab/",), ["--plugin", "mylab.speech"]),  # a package in the current folder, beside asr
    ],
    ids=["encoder", "plugin"],
)
def test_a_component_in_the_guide_trains_and_transcribes(
    training: list[str],
    added: list[str],
    copied: tuple[str, ...],
    begin: tuple[str, ...],
    options: list[str],
    tones: Path,
    tmp_path: Path,
) -> None:
    for folder in copied:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    assert all(any(name.startswith(part) for part in ("asr/", "conf/", "mylab/")) for name in files_of_guide())
    files = files_of_guide()
    for name in ("encoder/pooled.py", "conf/encoder/pooled.yaml"):  # the package may have this encoder, too
        files[f"mylab/speech/{name}"] = files[name if name.startswith("conf/") else f"asr/components/{name}"]
    for name, content in files.items():
        if name.startswith(begin):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
    assert training in commands(GUIDE)
    assert all(f"`{override}`" in GUIDE.read_text() for override in added)
    run = next(word.removeprefix("run_dir=") for word in training if word.startswith("run_dir="))
    training = [*training, *added, *tone_corpus(tones), "trainer.max_steps=3", "trainer.accelerator=cpu"]
    checks = [["asr.check", package] for package in options[1:]]
    if options:
        for objective in OBJECTIVES:
            assert objective in commands(GUIDE)
            checks.append([*objective, *training[len(SCALED) + len(added) :]])
    for command in (*checks, training, ["asr.transcribe", run, str(tones / "test.jsonl"), *options]):
        ended = subprocess.run(
            [sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
    assert (tmp_path / run / "report.html").is_file()
    for objective, recognises in zip(OBJECTIVES, (True, False), strict=True) if options else ():
        report = tmp_path / objective[-1].removeprefix("run_dir=") / "report.html"
        assert ("Hypotheses during training" in report.read_text()) == recognises


def files_of_guide() -> dict[str, str]:
    """Return the files that docs/guide/extend.md shows, by path."""
    blocks = [*code_blocks(GUIDE, "python"), *code_blocks(GUIDE, "yaml")]
    return dict(block.removeprefix("# ").split("\n", 1) for block in blocks)


@pytest.mark.slow
def test_the_contract_tests_accept_the_encoder_of_the_guide(tmp_path: Path) -> None:
    """The tests run in a copy of the checkout, with the command that the page shows."""
    for folder in ("asr", "conf", "recipes", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, content in files_of_guide().items():
        if not name.startswith("mylab/"):
            (tmp_path / name).write_text(content)
    (shown,) = re.findall(r"^pytest (.*)$", GUIDE.read_text(), re.MULTILINE)
    command = [sys.executable, "-m", "pytest", *shlex.split(shown)]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    assert re.search(r"\d+ passed, \d+ skipped", ended.stdout), ended.stdout
