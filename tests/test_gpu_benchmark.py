"""The GPU benchmark runs all its steps on a CPU, even if a step fails, and judges whether its goals are met."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.errors import InputError
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.goals import NOT_RUN, judged
from benchmarks.gpu.processes import DONE, run
from benchmarks.gpu.steps import LOG, TINY, Step, steps_of
from tests.conftest import ROOT
from tests.refusals import mentions, refused


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to the root of the checkout, because the steps run there."""
    monkeypatch.chdir(ROOT)


@pytest.mark.slow
def test_every_kind_of_step_runs_on_a_cpu_and_all_results_are_in_two_files(
    at_root: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    assert main(["--device", "cpu", "--output-dir", str(tmp_path)]) == 0, capsys.readouterr()
    content = json.loads((tmp_path / "gpu.json").read_text())
    assert {name: outcome["outcome"] for name, outcome in content["steps"].items()} == dict.fromkeys(TINY, DONE)
    results = content["results"]
    assert {row["outcome"] for row in results["correctness"]} <= {"skipped", "passed"}
    kernels = {(row["encoder"], row["precision"], row["pass"]): row["kernels"] for row in results["kernels"]}
    assert kernels["transformer", "bfloat16", "inference"] == "flash_attention_for_cpu"
    assert kernels["conformer_xs", "bfloat16", "training"] == "none"
    assert [row["contender"] for row in results["steps_s"]] == ["ours", "Parakeet"]
    reference, other = results["training"]
    assert (reference["mean loss difference"], other["run"], other["steps"]) == (0, "float32", 2)
    assert other["mean loss difference"] < 1e-4
    assert {row["texts"] for row in results["recognition"]} == {"2 of 2"}
    page = (tmp_path / "gpu.md").read_text()
    assert "figures are meaningless" in page
    assert all(f"## {name}" in page for name in TINY if name != "correctness")
    assert "| step of s, 100 s | 3 times eager Parakeet | not run | not run |" in page


MODULE = """
import subprocess, sys, time
from asr.errors import InputError

def main(arguments):
    print("begun")
    if arguments == ["refused"]:
        raise InputError("the audio must exist; got none.")
    if arguments == ["slow"]:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
        print(f"child {child.pid}.")
        time.sleep(100)
    return 0
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a module that can run as a step; return its name."""
    (tmp_path / "program_of_a_step.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return "program_of_a_step"


@pytest.mark.slow
def test_a_step_that_exceeds_its_time_limit_is_killed_with_its_child_processes(module: str, tmp_path: Path) -> None:
    step = Step("", module, ["slow"], 1, "result.json")
    log = tmp_path / LOG
    limit = 10.0  # seconds; enough for the step to start its child process
    assert run(step, tmp_path, limit, "cpu") == "stopped after its time limit of 10 s"
    child = int(log.read_text().partition("child ")[2].partition(".")[0])
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.1)
    else:
        os.kill(child, 9)
        pytest.fail("a process of the step is still running")


@pytest.mark.parametrize(
    ("arguments", "outcome", "log_text"),
    [
        ([], DONE, "begun\n"),
        (["refused"], "failed with status 1", "begun\nerror: the audio must exist; got none.\n"),
    ],
)
def test_the_outcome_and_the_log_of_a_step_are_stored(
    arguments: list[str], outcome: str, log_text: str, module: str, tmp_path: Path
) -> None:
    assert run(Step("", module, arguments, 1, "result.json"), tmp_path, 60, "cpu") == outcome
    assert (tmp_path / LOG).read_text() == log_text


def test_a_step_for_which_no_time_is_left_is_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--device", "cpu", "--minutes", "0.1", "--steps", "kernels", "--output-dir", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert mentions(shown.err, "every step ... no time")
    assert json.loads((tmp_path / "gpu.json").read_text())["steps"]["kernels"] == {}


def test_an_unknown_step_is_refused(tmp_path: Path) -> None:
    with refused(InputError, "--steps; got attention"):
        main(["--device", "cpu", "--steps", "attention", "--output-dir", str(tmp_path)])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_gpu_the_benchmark_ends_with_a_one_line_error() -> None:
    with refused(InputError, "--device; got cuda"):
        main(["--device", "cuda"])


def test_the_program_of_each_step_accepts_its_arguments() -> None:
    """Only the parser of each program gets the arguments; nothing is run."""
    import importlib

    for name, step in steps_of("cuda", False, ["models/a"], ["audio.jsonl"]).items():
        if step.module == "pytest":
            assert all((ROOT / path).is_file() for path in step.arguments if path.startswith("tests/")), name
            continue
        arguments = [argument.replace("{folder}", "x") for argument in step.arguments]
        with pytest.raises(SystemExit) as end:
            importlib.import_module(step.module).main([*arguments, "--help"])
        assert end.value.code == 0, name


def step_row(contender: str, batch: str, ms: float) -> dict[str, Any]:
    return {"contender": contender, "batch": batch, "ms": ms, "of matmul": 0.4 / ms}


def test_step_time_goals_compare_our_fastest_variant_with_eager_parakeet() -> None:
    rows = [step_row(name, "7x14", ms) for name, ms in (("ours", 100), ("ours, CUDA graphs", 25), ("Parakeet", 90))]
    rows += [
        step_row("ours", "29x14", 100),
        step_row("Parakeet", "29x14", 90),
        step_row("Parakeet, compiled", "29x14", 9),
    ]
    verdicts = {goal: (reached, met) for goal, _, reached, met in judged({"steps_s": rows})}
    assert verdicts["step of s, 100 s"] == ("3.60 (ours, CUDA graphs)", "yes")
    assert verdicts["step of s, 400 s"] == ("0.90 (ours)", "no")
    assert verdicts["step of m, 100 s"] == (NOT_RUN, NOT_RUN)


def test_an_encoder_that_runs_an_inefficient_kernel_is_named() -> None:
    rows = [
        {"encoder": "a", "precision": "bfloat16", "kernels": "efficient_attention", "finite": "yes"},
        {"encoder": "b", "precision": "bfloat16", "kernels": "attention_math", "finite": "no"},
        {"encoder": "c", "precision": "float32", "kernels": "attention_math", "finite": "yes"},
        {"encoder": "d", "precision": "bfloat16", "kernels": "none", "finite": "yes"},
    ]
    verdicts = {goal: (reached, met) for goal, _, reached, met in judged({"kernels": rows})}
    assert verdicts["bfloat16 attention"] == ("1 of 2; b: attention_math", "no")
    assert verdicts["outputs and gradients of every encoder"] == ("4 passes; b", "no")


def test_a_run_misses_the_goal_if_its_losses_are_not_finite_or_far_from_those_of_the_cpu() -> None:
    row = {"run": "bfloat16", "mean loss difference": 0.01, "not finite": 0, "steps": 300, "ended": "yes"}
    goal = "losses of 300 steps in bfloat16"
    for change, met in (({}, "yes"), ({"mean loss difference": 0.04}, "no"), ({"ended": "loss is not finite"}, "no")):
        [verdict] = [verdict for verdict in judged({"training": [row | change]}) if verdict[0] == goal]
        assert verdict[3] == met
