"""Memory of training processes: pages of 2 MB, asked for without using memory, also after workers were forked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import pages

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")

MEMORY = """
import json
from pathlib import Path
import torch
from asr.base.system.processes import keep_memory, shared_memory, use_huge_pages

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4

def is_huge(tensor):
    # Whether huge pages were asked for where the middle of a tensor lies: flag hg, proc_pid_smaps(5).
    middle, inside = tensor.data_ptr() + tensor.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            start, end = (int(number, 16) for number in name.split("-"))
            inside = start <= middle < end
        elif name == "VmFlags:" and inside:
            return "hg" in rest

torch.ones(1)
before = torch.ones(2**25)
keep_memory()
kilobytes = resident()
use_huge_pages()
kilobytes = resident() - kilobytes
first = torch.ones(2**25)
with shared_memory():  # gives the reserved addresses back
    pass
second = torch.ones(2**25)
print(json.dumps({"reserved": kilobytes, "huge": [is_huge(tensor) for tensor in (before, first, second)]}))
"""


@pytest.mark.skipif(not ENABLED.is_file(), reason="needs Linux with transparent huge pages")
def test_huge_pages_are_asked_for_and_take_no_memory_before_they_are_used() -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["reserved"] < 2**12
    assert answer["huge"] == [False, True, True]


@pytest.mark.skipif(sys.platform != "linux", reason="sets glibc's allocator")
def test_limited_addresses_are_left_to_the_process() -> None:
    program = """
import resource
from asr.base.system.processes import _address_space, keep_memory, use_huge_pages
resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
before = _address_space()
keep_memory()
use_huge_pages()
assert _address_space() - before < 2**24
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="sets glibc's allocator")
def test_the_benchmark_of_pages_compares_with_kept_memory(tmp_path: Path) -> None:
    options = ["--encoders", "conformer_xs", "--batches", "1x1", "--turns", "1", "--output-dir", str(tmp_path)]
    assert pages.main(options) == 0
    rows = json.loads((tmp_path / "pages.json").read_text())["rows"]
    assert {row["memory"] for row in rows} == set(pages.WAYS)
    assert all(row["CPU ms"] > 0 for row in rows)
