"""Choice of the library for float32 matrix products on a CPU: torch's own choice, or oneDNN for large products.

On x86, torch uses MKL to multiply float32 matrices, and MKL runs its code for AVX2 on AMD's processors. On processors
whose AVX-512 units are 512 bits wide, this code reaches half of the possible speed; oneDNN, which torch contains, runs
AVX-512 code on the processors of all vendors. Only commands choose oneDNN (`adopt`), and only for batches
(`large_products`): a call of oneDNN takes 10 microseconds longer, so MKL computes products of few rows (single
utterances, streams, decoding).

torch's switch is called `fp32_precision = "bf16"`, because oneDNN then may multiply in bfloat16. On a processor without
AMX, oneDNN has no faster code for bfloat16 and computes in float32, which `is_exact` checks. The switch is global to
the process, and while it is on, `torch.get_float32_matmul_precision` raises an error; so it is on only inside of
`large_products`, and never in a process whose threads compute at the same time.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TORCH, ONEDNN = "torch", "oneDNN"  # names of the libraries, in results.json
# Minimum number of encoder frames, with padding, of a batch for oneDNN. At 250 frames (10 s) both libraries are equally
# fast; at fewer frames MKL is faster.
MIN_FRAMES = 512
AMD_WITH_WIDE_UNITS = 26  # Zen 5, family 1Ah; earlier families compute 512 bits in two halves, no faster than AVX2
SMALL = 2.0**-12  # float32 can represent 1 + SMALL; bfloat16 (8 bits) and float16 (11 bits) cannot
MAX_ERROR_RATIO = 4.0  # maximum ratio of oneDNN's error to MKL's; with bfloat16 the ratio would be in the thousands

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Processor:
    """Properties of a processor that determine the library.

    Args:
        vendor: as in CPUID, such as "AuthenticAMD" or "GenuineIntel"; "" if unknown.
        family: as in CPUID.
        has_avx512: whether the system can use AVX-512.
        has_amx: whether the system can use AMX, whose products are in bfloat16.
    """

    vendor: str
    family: int
    has_avx512: bool
    has_amx: bool


class _Process:
    """Whether this process is a command, and its library for matrix products."""

    is_command = False
    form = TORCH


def permit() -> None:
    """Let `adopt` choose oneDNN in this process; only the entry points of commands call this function.

    The library is `TORCH` until `adopt` is called. Each job of a --multirun calls both, because jobs share a process.
    """
    _Process.is_command, _Process.form = True, TORCH


def form() -> str:
    """Return the library for matrix products in this process: `TORCH` or `ONEDNN`."""
    return _Process.form


def adopt(device_type: str) -> str:
    """Choose the library for matrix products in this process; it is `TORCH` unless the process is a command (`permit`).

    Args:
        device_type: type of the device that the command computes on, such as "cpu".

    Returns:
        The name of the library.
    """
    _Process.form = TORCH
    if _Process.is_command and choose(this_processor(), device_type) == ONEDNN:
        if is_exact():
            _Process.form = ONEDNN
            logger.info("matrix products of batches: oneDNN")
        else:
            logger.warning("matrix products: as torch chooses, because oneDNN's are not exact on this processor")
    return _Process.form


def choose(processor: Processor, device_type: str) -> str:
    """Return the library that is faster for batches on a device; only the kind of processor is considered."""
    is_wide = processor.vendor == "AuthenticAMD" and processor.family >= AMD_WITH_WIDE_UNITS
    return ONEDNN if device_type == "cpu" and is_wide and processor.has_avx512 and not processor.has_amx else TORCH


def this_processor() -> Processor:
    """Read the properties of this machine's processor; the vendor is unknown except on Linux."""
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if sys.platform == "linux" else ""
    return read_processor(text, has_amx=torch.cpu._is_amx_tile_supported())


def read_processor(cpuinfo: str, *, has_amx: bool) -> Processor:
    """Read the properties of the first processor from the text of /proc/cpuinfo."""
    first = cpuinfo.partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    family = fields.get("cpu family", "")
    return Processor(
        vendor=fields.get("vendor_id", ""),
        family=int(family) if family.isdecimal() else 0,
        has_avx512="avx512f" in fields.get("flags", "").split(),
        has_amx=has_amx,
    )


def is_exact() -> bool:
    """Return whether oneDNN's products have float32's precision on this processor; they are compared with torch's."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for shape, columns in (((512, 144), 576), ((4, 250, 36), 250), ((16, 640), 2560)):
        left = torch.randn(*shape, generator=generator)
        right = torch.randn(*shape[:-2], shape[-1], columns, generator=generator)
        ones, identity = torch.full_like(left, 1 + SMALL), torch.eye(shape[-1]).expand(*shape[:-2], -1, -1)
        expected, by_torch = left.double() @ right.double(), left @ right
        with onednn():
            by_onednn, same = left @ right, ones @ identity.contiguous()
        error, reference = ((out - expected).norm() for out in (by_onednn, by_torch))
        if not torch.equal(same, ones) or not error <= MAX_ERROR_RATIO * reference:
            return False
    return True


@contextmanager
def large_products(num_frames: int) -> Iterator[None]:
    """Use the library that `adopt` has chosen for the matrix products in this context.

    Args:
        num_frames: encoder frames of the batch, with padding; below `MIN_FRAMES` torch chooses the library.
    """
    if _Process.form == ONEDNN and num_frames >= MIN_FRAMES:
        with onednn():
            yield
    else:
        yield


@contextmanager
def onednn() -> Iterator[None]:
    """Use oneDNN for matrix products in this context, in all threads of the process."""
    import torch

    mkldnn: Any = torch.backends.mkldnn  # its type lacks `matmul`
    switch = mkldnn.matmul
    before = switch.fp32_precision
    switch.fp32_precision = "bf16"
    try:
        yield
    finally:
        switch.fp32_precision = before
