"""Compilation for a GPU, on a machine without one (`benchmarks.null_gpu`)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PATIENCE

pytestmark = pytest.mark.slow

COMPILED = """
import json, sys
from functools import partialmethod

import torch
from functorch.compile import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified

from asr.core.training.compiled_blocks import compile_blocks
from tests.test_compiled_blocks import make_encoder

graphs = []


def compiler(graph, inputs):
    return aot_module_simplified(graph, inputs, fw_compiler=noted, bw_compiler=lambda graph, _: boxed(graph))


def noted(graph, inputs):
    graphs.append([str(node.target) for node in graph.graph.nodes])
    return boxed(graph)


def boxed(graph):
    return make_boxed_func(graph.forward)


encoder = make_encoder(*sys.argv[1:]).cuda().train()
torch.nn.Module.compile = partialmethod(torch.nn.Module.compile, backend=compiler)
compile_blocks(encoder, world_size=1)
for utterances, frames in [(7, 1400), (9, 1084), (4, 640), (3, 512)]:  # 640 / 8 and 512 / 8 are multiples of 16
    features = torch.randn(utterances, frames, 20, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        out = encoder(features, torch.full((utterances,), frames, device="cuda")).out
    out.float().sum().backward()
print(json.dumps(graphs))
"""

KILLED = """
import os, signal, threading, time
from pathlib import Path

import torch

from asr.core.training.compiled_blocks import compile_blocks, compile_failure
from tests.test_compiled_blocks import make_encoder


def status(process, field):
    return next(line.split()[1] for line in (process / "status").read_text().splitlines() if line.startswith(field))


def kill_the_compiler():
    # Kill the process that runs ptxas and, unless it is this process, the parent of that process: a pool of workers.
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if status(process, "Name:") == "ptxas" and os.getsid(int(process.name)) == os.getsid(0):
                parent = int(status(process, "PPid:"))
                pool = int(status(Path("/proc", str(parent)), "PPid:"))
                for pid in {pool, parent, int(process.name)} - {os.getpid(), os.getppid()}:
                    os.kill(pid, signal.SIGKILL)
                return True
        except OSError:  # the process has ended
            pass
    return False


def watch():
    while not kill_the_compiler():
        time.sleep(0.001)


encoder = make_encoder("encoder=transformer").cuda().train()
compile_blocks(encoder, world_size=1)
threading.Thread(target=watch, daemon=True).start()
try:
    encoder(torch.randn(3, 160, 20, device="cuda"), torch.full((3,), 160, device="cuda")).out.sum().backward()
except RuntimeError as error:
    print(compile_failure(error))
"""


@pytest.mark.parametrize(
    "overrides", [["encoder=conformer_xs"], ["encoder=transformer"]], ids=lambda overrides: overrides[0]
)
def test_compiled_blocks_are_one_program_with_fused_attention(
    overrides: list[str], null_gpu: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(COMPILED)
    command = [sys.executable, str(tmp_path / "program.py"), *overrides]
    done = subprocess.run(command, env=null_gpu, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    [operations] = json.loads(done.stdout)
    assert any("efficient_attention" in name for name in operations), operations


def test_a_compiler_that_is_killed_is_a_failure_in_one_line_and_not_a_wait(
    null_gpu: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(KILLED)
    environment = null_gpu | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE, start_new_session=True
    )
    assert done.returncode == 0, done.stderr
    assert "ptxas" in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1
