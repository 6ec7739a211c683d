"""The lattices' Triton kernel: exact in Triton's interpreter, and compiled for GPUs that are not there."""

import os
import subprocess
import sys

import pytest
import torch

from asr.base.kernels import native
from tests.conftest import PATIENCE, ROOT

pytest.importorskip("triton")


@pytest.mark.parametrize("marks", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_the_kernel_is_exact_in_the_interpreter(marks: str) -> None:
    """In a process of its own, because Triton reads TRITON_INTERPRET when it is imported."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        marks,
        "tests/interpreted_lattice.py",
    ]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize(
    ("weights", "frames", "columns", "program"),
    [
        ("*fp32", (1, 1, 1), (0, 1, 2), {"slope": 0, "num_starts": 2, "num_last": 3, "by_cell": True}),
        ("*fp64", (1, 0), (0, 1), {"slope": 1, "num_starts": 1, "num_last": 1, "by_cell": False}),
        ("*fp64", (1, 2, 0, 1, 2), (0, 0, 1, 1, 1), {"slope": 1, "num_starts": 1, "num_last": 2, "by_cell": False}),
    ],
    ids=["ctc", "rnnt", "tdt"],
)
def test_the_kernel_compiles_to_machine_code(
    weights: str, frames: tuple[int, ...], columns: tuple[int, ...], program: dict[str, int], architecture: int
) -> None:
    """Neighbouring levels are separated by barriers, one in each of the two loops."""
    from triton import compile as compiled
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from asr.base.kernels.lattice_triton import _sum_paths

    constants = {"frames": frames, "columns": columns, "block": 128, **program}
    pointers = {
        "weights": weights,
        "posteriors": weights,
        "doors": "*i1",
        "lengths": "*i64",
        "last_columns": "*i64",
        "alphas": "*fp64",
        "log_probs": "*fp64",
    }
    signature = {name: pointers.get(name, "constexpr" if name in constants else "i64") for name in _sum_paths.arg_names}
    source = ASTSource(fn=_sum_paths, signature=signature, constexprs=constants)
    made = compiled(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": 2})
    assert made.asm["cubin"]
    assert made.asm["ptx"].count("bar.sync") == 2


def test_without_a_working_triton_the_plain_forms_are_used_and_a_line_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setitem(sys.modules, "asr.base.kernels.lattice_triton", None)
    monkeypatch.setattr(native, "_compiled_lattice", native._compiled_lattice.__wrapped__)
    assert native.triton_lattice(torch.device("cpu")) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
