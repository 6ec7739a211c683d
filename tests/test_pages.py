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

def kilobytes(name):
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))

torch.ones(1)
before = kilobytes("Rss")
keep_memory()
use_huge_pages()
reserved = kilobytes("Rss") - before
first = torch.ones(2**25)
huge = kilobytes("AnonHugePages")
with shared_memory():  # gives the reserved addresses back
    pass
second = torch.ones(2**25)
print(json.dumps({"reserved": reserved, "huge": huge, "more": kilobytes("AnonHugePages") - huge}))
"""


@pytest.mark.skipif(not ENABLED.is_file() or "[madvise]" not in ENABLED.read_text(), reason="needs Linux with madvise")
def test_tensors_lie_in_huge_pages_which_take_no_memory_before_they_are_used() -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    kilobytes = json.loads(done.stdout)
    assert kilobytes["reserved"] < 2**12
    assert kilobytes["huge"] > 2**16  # of 2**17 in the tensor
    assert kilobytes["more"] > 2**16


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
