"""The GPU benchmark runs all its steps on a CPU, even if a step fails, and judges whether its goals are met."""

import gzip
import json
import math
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch

from asr.core.data.manifest import read_manifest
from asr.errors import InputError
from benchmarks.contest import FAILURES
from benchmarks.gpu import pack
from benchmarks.gpu.__main__ import main, run_parts
from benchmarks.gpu.goals import NOT_RUN, judged
from benchmarks.gpu.pack import add_speech
from benchmarks.gpu.processes import DONE
from benchmarks.gpu.report import OUTCOME, write_report
from benchmarks.gpu.speech import TEXTS, Speech, decode, planned
from benchmarks.gpu.steps import LOG, TINY, Part, Step, parts_of, steps_of
from benchmarks.nets import OURS, Batch, make_batch, make_net
from benchmarks.race import enter
from benchmarks.train_step import graph_with
from tests.conftest import ROOT, SLOWDOWN
from tests.refusals import mentions, refused
from tests.tones import sentences, write_corpus


@pytest.mark.slow
def test_every_kind_of_step_runs_on_a_cpu_and_all_results_are_in_two_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    packed = packed_tones(tmp_path)
    options = ["--device", "cpu", "--tiny", "--minutes", "60", "--audio", str(packed)]
    assert main([*options, "--output-dir", str(tmp_path), "--report-dir", str(tmp_path / "report")]) == 0, (
        capsys.readouterr()
    )
    content = json.loads((tmp_path / "report" / "gpu.json").read_text())
    assert {name: outcome["outcome"] for name, outcome in content["steps"].items()} == dict.fromkeys(TINY, DONE)
    results = content["results"]
    assert {row["outcome"] for row in results["tests"]} <= {"skipped", "passed"}
    kernels = {(row["encoder"], row["precision"], row["pass"]): row["kernels"] for row in results["kernels"]}
    assert kernels["transformer", "bfloat16", "inference"] == "flash_attention_for_cpu"
    assert kernels["conformer_xs", "bfloat16", "training"] == "none"
    assert [row["contender"] for row in results["steps"]] == ["ours", "Parakeet"]
    reference, other = results["losses_tdt"]
    assert (reference["mean loss difference"], other["run"], other["steps"]) == (0, "float32", 2)
    assert other["mean loss difference"] < 1e-4
    assert {row["texts"] for row in results["recognition"]} == {"2 of 2"}
    assert {row["measurement"] for row in results["speech"]} >= {"decoding", "test, greedy", "test, 3-gram"}
    page = (tmp_path / "report" / "gpu.md").read_text()
    assert "| step of s, 100 s | 3 times eager Parakeet | not run | not run |" in page
    assert "| dev loss |" in page


def packed_tones(tmp_path: Path) -> Path:
    """Return a folder of tones as `benchmarks.gpu.pack` writes it, without the wheels and the code."""
    texts = {"train": sentences(30, seed=1), "dev": sentences(4, seed=2), "test": sentences(4, seed=3)}
    write_corpus(tmp_path / "tones", texts)
    packed = tmp_path / "audio"
    packed.mkdir()
    for kind in texts:
        add_speech(tmp_path / "tones" / f"{kind}.jsonl", packed, 14, 1)
    (packed / TEXTS).write_bytes(gzip.compress("\n".join(texts["train"]).encode()))
    return packed


MODULE = """
import os, subprocess, sys, time

def main(name):
    print("begun", flush=True)
    match name:
        case "refused":
            return 1
        case "hang":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
            print(f"child {child.pid}.", flush=True)
            time.sleep(100)
        case "deaf":
            import signal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(100)
        case "crash":
            os.abort()
        case "killed":
            os.kill(os.getpid(), 9)
        case "memory":
            import resource
            resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
            bytearray(2**40)
        case "where":
            print(os.getcwd())
        case "score":
            with open("/proc/self/oom_score_adj") as file:
                print(file.read())
    return 0

sys.exit(main(sys.argv[1]))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a module that can run as a step; return its name."""
    (tmp_path / "program_of_a_step.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "program_of_a_step"


def fake(module: str, *names: str) -> dict[str, Step]:
    return {name: Step("", module, [name], "result.json") for name in names}


def outcomes(parts: dict[str, Part], folder: Path, seconds: float) -> dict[str, str]:
    return dict(run_parts(parts, folder, seconds))


LIMIT = 1.5 * SLOWDOWN  # seconds, enough for a step to start


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a step start however little time is left."""
    monkeypatch.setattr("benchmarks.gpu.__main__.MIN_SECONDS", 0.0)


def test_a_part_that_crashes_or_runs_out_of_memory_does_not_stop_the_next_part(module: str, tmp_path: Path) -> None:
    parts = {name: Part(fake(module, name), 1) for name in ("crash", "memory", "killed", "refused", "good")}
    assert outcomes(parts, tmp_path, 300 * SLOWDOWN) == {
        "crash": "ended by SIGABRT",
        "memory": "failed with status 1",
        "killed": "ended by SIGKILL: memory may have run out",
        "refused": "failed with status 1",
        "good": DONE,
    }
    logs = {name: (tmp_path / name / LOG).read_text() for name in parts}
    assert all(log.startswith("begun\n") for log in logs.values())
    assert "MemoryError" in logs["memory"]
    assert all(json.loads((tmp_path / name / OUTCOME).read_text())["seconds"] > 0 for name in parts)


@pytest.mark.parametrize("kind", ["hang", "deaf"])
def test_a_part_that_hangs_is_killed_at_its_limit_with_its_child_processes(
    kind: str, module: str, tmp_path: Path
) -> None:
    parts = {"first": Part(fake(module, kind), 1), "second": Part(fake(module, "good"), 3)}
    ended = outcomes(parts, tmp_path, 4 * LIMIT)
    assert ended[kind].startswith("stopped after its time limit")
    assert ended["good"] == DONE
    if kind == "hang":
        child = int((tmp_path / kind / LOG).read_text().partition("child ")[2].partition(".")[0])
        assert gone(child)


def test_steps_that_run_together_end_for_themselves_and_share_one_limit(module: str, tmp_path: Path) -> None:
    part = Part(fake(module, "hang", "crash", "good"), 1, together=True)
    ended = outcomes({"part": part}, tmp_path, LIMIT)
    assert ended["hang"].startswith("stopped")
    assert ended["crash"] == "ended by SIGABRT"
    assert ended["good"] == DONE
    assert list(ended)[-1] == "hang"


def test_parts_and_steps_get_their_share_of_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, limits = 0.0, {}

    def run_steps(steps: dict[str, Step], folder: Path, seconds: float) -> Iterator[tuple[str, str]]:
        nonlocal clock
        for name in steps:
            limits[name] = round(seconds)
            clock += 0 if name == "idle" else seconds
            yield name, DONE

    monkeypatch.setattr("benchmarks.gpu.__main__.time.monotonic", lambda: clock)
    monkeypatch.setattr("benchmarks.gpu.__main__.run_steps", run_steps)
    steps = {name: Step("", "", [], "", share) for name, share in (("a", 3), ("b", 1))}
    idle = {"idle": Step("", "", [], "")}
    outcomes({"w": Part(steps, 2), "x": Part(idle, 3), "y": Part(steps, 1), "z": Part(idle, 2)}, Path(), 80)
    assert limits == {"a": 15, "b": 5, "idle": 40}
    assert clock == 40


def test_the_parts_of_nine_minutes_have_one_five_two_and_one_of_them() -> None:
    parts = parts_of("cuda", Path("audio"))
    assert {name: part.share for name, part in parts.items()} == {"right": 1, "trained": 5, "fast": 2, "rest": 1}


def test_a_step_runs_in_the_checkout_and_the_folder_of_results_may_be_relative(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert outcomes({"part": Part(fake(module, "where"), 1)}, Path("results"), 60 * SLOWDOWN) == {"where": DONE}
    assert (tmp_path / "results" / "where" / LOG).read_text().split() == ["begun", str(ROOT)]


def test_a_program_that_is_asked_to_end_kills_its_steps(module: str, tmp_path: Path) -> None:
    code = "from benchmarks.gpu import __main__ as program, steps; from pathlib import Path\n"
    code += f"parts = {{'right': steps.Part({{'hang': steps.Step('', {module!r}, ['hang'], 'result.json')}}, 1)}}\n"
    code += "program.parts_of = lambda *options: parts\n"
    code += f"program.main(['--device', 'cpu', '--output-dir', {str(tmp_path)!r}])"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    program = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.DEVNULL)
    log, end = tmp_path / "hang" / LOG, time.monotonic() + 100 * SLOWDOWN
    while not (log.is_file() and "." in log.read_text()):
        assert time.monotonic() < end, program.kill()
        assert program.poll() is None
        time.sleep(0.05)
    program.terminate()
    assert program.wait(10 * SLOWDOWN) == 128 + signal.SIGTERM
    child = int(log.read_text().partition("child ")[2].partition(".")[0])
    assert gone(child)


def gone(process: int) -> bool:
    """Wait until a process has ended; return False, and kill it, if it does not."""
    stat, end = Path(f"/proc/{process}/stat"), time.monotonic() + LIMIT
    while stat.exists() and stat.read_text().split()[2] != "Z":
        if time.monotonic() > end:
            os.kill(process, signal.SIGKILL)
            return False
        time.sleep(0.05)
    return True


def test_linux_kills_a_step_before_the_program_that_runs_the_steps(module: str, tmp_path: Path) -> None:
    assert outcomes({"part": Part(fake(module, "score"), 1)}, tmp_path, 60 * SLOWDOWN) == {"score": DONE}
    assert (tmp_path / "score" / LOG).read_text().split() == ["begun", "1000"]


def test_a_step_for_which_no_time_is_left_is_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--device", "cpu", "--minutes", "0", "--steps", "kernels", "--output-dir", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert mentions(shown.err, "every step ... no time")
    assert json.loads((tmp_path / "gpu.json").read_text())["steps"]["kernels"] == {}


def test_the_report_is_written_after_each_step(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"right": Part(fake(module, "good"), 1), "rest": Part(fake(module, "crash"), 1)}
    monkeypatch.setattr("benchmarks.gpu.__main__.parts_of", lambda *options: parts)
    pages = []

    def report(*given: Any) -> None:
        write_report(*given)
        pages.append((tmp_path / "gpu.md").read_text())

    monkeypatch.setattr("benchmarks.gpu.__main__.write_report", report)
    assert main(["--device", "cpu", "--output-dir", str(tmp_path)]) == 1
    assert ["| crash |  | not run | 0 |" in page for page in pages] == [True, False]
    assert "| crash |  | ended by SIGABRT |" in pages[1]
    assert all("| good |  | done |" in page for page in pages)


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

    for name, step in steps_of(parts_of("cuda", Path("audio"))).items():
        if step.module == "pytest":
            assert all((ROOT / path).is_file() for path in step.arguments if path.startswith("tests/")), name
            continue
        arguments = [argument.replace("{folder}", "x").replace("{seconds}", "9") for argument in step.arguments]
        with pytest.raises(SystemExit) as end:
            importlib.import_module(step.module).main([*arguments, "--help"])
        assert end.value.code == 0, name


def step_row(contender: str, batch: str, ms: float) -> dict[str, Any]:
    return {"size": "s", "contender": contender, "batch": batch, "ms": ms, "of matmul": 0.4 / ms}


def test_step_time_goals_compare_our_fastest_variant_with_eager_parakeet() -> None:
    rows = [step_row(name, "7x14", ms) for name, ms in (("ours", 100), ("ours, CUDA graphs", 25), ("Parakeet", 90))]
    rows += [
        step_row("ours", "29x14", 100),
        step_row("Parakeet", "29x14", 90),
        step_row("Parakeet, compiled", "29x14", 9),
    ]
    verdicts = {goal: (reached, met) for goal, _, reached, met in judged({"steps": rows})}
    assert verdicts["step of s, 100 s"] == ("3.60 (ours, CUDA graphs)", "yes")
    assert verdicts["step of s, 400 s"] == ("0.90 (ours)", "no: 64.0% below")
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


@pytest.mark.parametrize(
    ("change", "met"),
    [
        ({}, "yes"),
        ({"mean loss difference": 0.06}, "no: bfloat16 2 times the bound"),
        ({"mean loss difference": math.nan}, "no: bfloat16 nan times the bound"),
        ({"not finite": 3}, "no: bfloat16: 3 of 20 not finite"),
        ({"ended": "loss is not finite"}, "no: bfloat16 ended: loss is not finite"),
    ],
)
def test_a_run_misses_the_goal_if_its_losses_are_not_finite_or_far_from_those_of_the_cpu(
    change: dict[str, Any], met: str
) -> None:
    row = {"run": "bfloat16", "mean loss difference": 0.01, "not finite": 0, "steps": 20, "ended": "yes"}
    [verdict] = [verdict for verdict in judged({"losses_ctc": [row | change]}) if verdict[2] != NOT_RUN]
    assert verdict[3] == met


def test_lattices_miss_the_goal_by_value_by_gradient_or_if_not_finite() -> None:
    row = {"loss": "tdt", "logits": "bfloat16", "by": "Triton", "not finite": 0}
    row |= {"difference": 1e-7, "gradient difference": 2e-3}
    verdicts = {
        name: next(verdict for verdict in judged({"lattices": [row | change]}) if verdict[2] != NOT_RUN)[3]
        for name, change in {
            "good": {},
            "value": {"difference": 3e-5},
            "gradient": {"gradient difference": math.nan},
            "finite": {"not finite": 2},
        }.items()
    }
    assert verdicts == {
        "good": "yes",
        "value": "no: tdt, bfloat16, difference 3 times the bound",
        "gradient": "no: tdt, bfloat16, gradient difference nan times the bound",
        "finite": "no: 2 not finite in tdt",
    }


def test_the_training_on_speech_is_judged_by_waiting_and_memory() -> None:
    rows = [
        {"measurement": "training", "value": 4000, "unit": "s/s", "notes": "900 steps; ended: yes"},
        {"measurement": "waiting for data", "value": 0.25, "unit": "of a step", "notes": None},
        {"measurement": "memory", "value": 1.2, "unit": "GB", "notes": "forecast: plain 1.00 GB, checkpointing 0.5 GB"},
        {"measurement": "test-clean, greedy", "value": 0.5, "unit": "WER", "notes": "5 errors of 10 words"},
    ]
    verdicts = {goal: (reached, met) for goal, _, reached, met in judged({"speech": rows})}
    assert verdicts["training on speech"] == ("4,000 s/s, 900 steps; ended: yes", "yes")
    assert verdicts["its waiting for data"] == ("25.0%", "no: 2.5 times the bound")
    assert verdicts["its memory"][1] == "no: 2 times the bound"
    assert verdicts["its WER"] == ("test-clean, greedy: 50.0%", "-")
    assert judged({"speech": []})[6][2] == NOT_RUN


def test_the_graphs_of_an_encoder_return_tensors_alone_and_the_loss_stays_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def recorded(module: torch.nn.Module, example: tuple[torch.Tensor, ...]) -> torch.nn.Module:
        """Flatten the outputs as torch.cuda.make_graphed_callables does."""
        outputs, _ = torch.utils._pytree.tree_flatten(module(*example))
        assert all(isinstance(output, torch.Tensor) for output in outputs)
        return module

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", recorded)
    net, batch = make_net(OURS, "conformer_xs").train(), Batch(*make_batch(2, 1.0))
    before = net.loss(batch)
    graph_with(torch.float32)(net, batch)
    torch.testing.assert_close(net.loss(batch), before)


def test_a_contender_that_fails_is_left_out_and_the_others_run(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> Any:
        raise AttributeError("'NoneType' object has no attribute 'requires_grad'")

    assert enter({"graphs": fail, "eager": lambda: 1}, expected=FAILURES) == {"eager": 1}
    assert mentions(capsys.readouterr().out, "graphs: left out")


def speech_of(train: float) -> Speech:
    return Speech({}, {"train": train, "dev": 400.0, "test": 1000.0}, {"train": 1600, "dev": 30, "test": 110})


def test_as_many_epochs_of_speech_are_planned_as_fit_into_the_time() -> None:
    overrides, _ = planned(speech_of(20000.0), 4000.0, 10.0, 290.0)
    epochs = next(int(text.partition("=")[2]) for text in overrides if text.startswith("trainer.max_epochs"))
    every = next(int(text.partition("=")[2]) for text in overrides if text.startswith("trainer.check_val"))
    assert 30 <= epochs <= 44
    assert epochs % every == 0
    assert epochs / every <= 12
    overrides, _ = planned(speech_of(20000.0), 30.0, 10.0, 1700.0)
    assert "trainer.max_epochs=2" in overrides
    overrides, notes = planned(speech_of(20000.0), 10.0, 10.0, 1700.0)
    assert any(text.startswith("data.max_train_utterances=") for text in overrides)
    assert mentions(notes, "of the utterances")
    with refused(InputError, "--seconds"):
        planned(speech_of(20000.0), 4000.0, 10.0, 50.0)


def test_the_speech_of_a_folder_is_decoded_to_16_bit_files_of_equal_length(tmp_path: Path) -> None:
    packed, target = packed_tones(tmp_path), tmp_path / "wav"
    target.mkdir()
    speech = decode(packed, target, 2)
    decoded = read_manifest(speech.manifests["train"][0])
    written = read_manifest(tmp_path / "tones" / "train.jsonl")
    assert [utterance.text for utterance in decoded] == [utterance.text for utterance in written]
    assert [utterance.duration for utterance in decoded] == pytest.approx([each.duration for each in written], abs=1e-3)
    assert soundfile.info(decoded[0].audio_filepath).subtype == "PCM_16"
    assert (speech.utterances["train"], speech.utterances["test"]) == (30, 4)
    (packed / "dev.jsonl").unlink()
    (tmp_path / "other").mkdir()
    with refused(InputError, "dev*.jsonl"):
        decode(packed, tmp_path / "other", 1)


def test_a_pack_that_is_too_large_or_lacks_speech_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(InputError, "--manifests; got none"):
        pack.main([str(tmp_path / "pack"), "--manifests", "train.jsonl", "dev.jsonl"])
    manifests = ["--manifests", "train.jsonl", "dev.jsonl", "test.jsonl"]
    with refused(InputError, f"DIR; got {tmp_path}"):
        pack.main([str(tmp_path), *manifests])
    with refused(InputError, "--kilobits; got 5"):
        pack.main([str(tmp_path / "pack"), *manifests, "--kilobits", "5"])
    (tmp_path / "large").write_bytes(bytes(1000))
    monkeypatch.setattr(pack, "MAX_BYTES", 999)
    with refused(InputError, "DIR; got 1,000"):
        pack.check_size(tmp_path)


def test_the_code_of_a_pack_is_that_of_the_checkout(tmp_path: Path) -> None:
    pack.add_code(tmp_path / "code.tar.gz")
    with tarfile.open(tmp_path / "code.tar.gz") as archive:
        file = archive.extractfile("benchmarks/gpu/pack.py")
        assert file is not None
        assert file.read() == (ROOT / "benchmarks" / "gpu" / "pack.py").read_bytes()
