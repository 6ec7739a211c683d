"""The border between the floors of asr: base, components, core and apps."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT, TINY, tone_corpus
from tests.core_interface import SNAPSHOT, core_interface
from tests.imports import FLOORS, imported, is_module, modules, room

# Parts that are made of parts of another group.
EXCEPTIONS = {
    ("components.program.runtime", "components.head.ctc"),  # an exported head is a CTC head without a layer
    ("components.program.transducer", "components.head.transducer"),  # and a transducer whose nets are programs
    (
        "components.token_model.transformer_xl",
        "components.encoder.block.transformer_xl_block",
    ),  # a language model of the encoder's blocks
    ("components.token_model.transformer_xl", "components.encoder.block.residual.pre_norm"),
    ("components.token_model.transformer_xl", "components.encoder.stack"),
}

APP_EXCEPTIONS = {("apps/zoo", "apps/convert")}  # readers and writers of the zoo share those of Parakeet and NeMo


def imports() -> Iterator[tuple[str, str]]:
    """Yield each module of asr, and each module of asr that it imports, without the package's name."""
    for module, tree in modules("asr"):
        for name in imported(tree):
            if name.startswith("asr.") and is_module(name):
                yield module, name.removeprefix("asr.")


def floor(module: str) -> str:
    return module.split(".")[0]


def test_a_floor_imports_no_higher_floor_and_core_imports_no_component() -> None:
    wrong = set()
    for mine, theirs in imports():
        if floor(mine) in FLOORS and floor(theirs) in FLOORS:
            is_higher = FLOORS.index(floor(theirs)) > FLOORS.index(floor(mine))
            if is_higher or (floor(mine), floor(theirs)) == ("core", "components"):
                wrong.add((mine, theirs))
    assert wrong == set()


def test_no_floor_imports_a_command() -> None:
    commands = {module for module, _ in modules("asr")} - {"errors", "interfaces", "lengths"}
    assert {
        pair for pair in imports() if floor(pair[0]) in FLOORS and "." not in pair[1] and pair[1] in commands
    } == set()


def test_a_component_imports_only_base_the_contract_and_its_own_group() -> None:
    pairs = {pair for pair in imports() if floor(pair[0]) == floor(pair[1]) == "components"}
    assert {(mine, theirs) for mine, theirs in pairs if room(mine) != room(theirs)} == EXCEPTIONS


def test_an_app_imports_no_other_app_but_the_kit_of_pages_and_the_zoo_the_converter() -> None:
    pairs = {pair for pair in imports() if floor(pair[0]) == floor(pair[1]) == "apps"}
    others = {(room(mine), room(theirs)) for mine, theirs in pairs if room(theirs) not in (room(mine), "apps/web")}
    assert others == APP_EXCEPTIONS


def test_what_apps_take_from_core_grows_only_with_the_snapshot() -> None:
    """The snapshot may name more than is used, so that core's interface can shrink without a change here."""
    new = set(core_interface().splitlines()) - set(SNAPSHOT.read_text(encoding="utf-8").splitlines())
    assert new == set(), "apps use more of core; if core should offer it, run `make snapshots`"


def run_without(package: str, commands: list[list[str]]) -> tuple[list[int], subprocess.CompletedProcess[str]]:
    """Run commands in one process that cannot import a package; return their statuses, and the process's output."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.refusing", package, *(json.dumps(command) for command in commands)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ended.stdout.splitlines()[-1]), ended


def trained(folder: Path, corpus: Path, overrides: list[str]) -> list[str]:
    steps = ["trainer.max_steps=10", "trainer.max_epochs=-1", "augment=[]"]
    return ["asr.train", *overrides, *steps, *tone_corpus(corpus), f"run_dir={folder}"]


def check_run(folder: Path, errors: str) -> None:
    """Check that a run has trained ten steps, validated, and measured its bundle."""
    results = json.loads((folder / "results.json").read_text())
    assert results["test"]["reference_words"] > 0
    assert (folder / "metrics.csv").read_text().count("\n") > 2
    assert "Traceback" not in errors


def test_training_transcribing_and_evaluating_work_without_apps(tones: Path, tmp_path: Path) -> None:
    run, test = tmp_path / "run", str(tones / "test.jsonl")
    commands = [
        trained(run, tones, TINY),
        ["asr.transcribe", str(run), test, "--beam", "4"],
        ["asr.evaluate", str(run), test, "--output-dir", str(tmp_path / "results")],
        ["asr.transcribe", str(run), test, "--parts", str(tmp_path / "parts")],  # what only an app can do
        ["asr.transcribe", str(run), test, "--stream"],
        ["asr.evaluate", str(run), test, "--reverb", "0.5"],
    ]
    statuses, ended = run_without("asr.apps", commands)
    assert statuses == [0, 0, 0, 2, 2, 2], ended.stderr
    check_run(run, ended.stderr)
    assert not (run / "report.html").exists()
    assert "asr/apps/report" in ended.stderr
    assert "asr/apps/doctor" in ended.stderr, "the largest batches are not tried"
    assert (tmp_path / "results" / "test.utterances.jsonl").is_file()


TOY = ["plugins=[tests.toy]", "tokenizer=letters", "features=loudness", "encoder=pairs", "head=frames", "decode=best"]
TOY += ["optimizer=plain", "schedule=level", "data.num_workers=0", "trainer.accelerator=cpu"]


def test_training_transcribing_and_evaluating_work_with_the_components_of_a_plugin_alone(
    tones: Path, tmp_path: Path
) -> None:
    run, test, plugin = tmp_path / "run", str(tones / "test.jsonl"), ["--plugin", "tests.toy"]
    commands = [
        trained(run, tones, TOY),
        ["asr.transcribe", str(run), test, *plugin],
        ["asr.evaluate", str(run), test, *plugin],
        ["asr.transcribe", str(run), test, "--beam", "4", *plugin],  # the head names no beam search
    ]
    statuses, ended = run_without("asr.components", commands)
    assert statuses == [0, 0, 0, 1], ended.stderr
    check_run(run, ended.stderr)
