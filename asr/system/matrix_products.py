"""Choice of the library for float32 matrix products on a CPU: torch's own choice, or oneDNN for large products.

On x86 torch multiplies float32 matrices by MKL, which gives AMD's processors its code for AVX2. On processors whose
AVX-512 units are 512 bits wide this is half of their rate; oneDNN, which torch contains, has AVX-512 code for all
vendors. Only commands choose oneDNN (`adopt`), and only for batches (`large_products`): a call costs oneDNN 10
microseconds more, so products of few rows (single utterances, streams, decoding) stay with MKL.

torch's switch is called `fp32_precision = "bf16"`, because oneDNN then may multiply in bfloat16. Without AMX it has no
faster code for bfloat16 and computes in float32, which `is_exact` checks. The switch is global to the process, and
while it is on, `torch.get_float32_matmul_precision` raises; so it is on only inside of `large_products`, and never in a
process whose threads compute at the same time.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TORCH, ONEDNN = "torch", "oneDNN"  # names of the forms, in results.json
MIN_FRAMES = 512  # encoder frames of a batch, with padding; at 250 frames (10 s) MKL is as fast, at fewer faster
AMD_WITH_WIDE_UNITS = 26  # family 1Ah, Zen 5; earlier families compute 512 bits in two halves, so AVX2 is as fast
SMALL = 2.0**-12  # 1 + SMALL is a float32, but no bfloat16 (8 bits) and no float16 (11 bits)
MAX_ERROR_RATIO = 4.0  # to MKL's error; bfloat16's is thousands of times as large

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Processor:
    """Properties of a processor that decide the choice.

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
    """State of this process."""

    is_command = False
    form = TORCH


def permit() -> None:
    """Let `adopt` choose in this process; the entry points of commands call this, a library's caller does not."""
    _Process.is_command = True


def form() -> str:
    """Return the form of this process: `TORCH` or `ONEDNN`."""
    return _Process.form


def adopt(device_type: str) -> str:
    """Choose the form of this process; nothing changes unless the process is a command (`permit`).

    Args:
        device_type: of the device that the command computes on, such as "cpu".

    Returns:
        The form.
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
    """Return the faster form for batches on a device, from the kind of processor alone."""
    is_wide = processor.vendor == "AuthenticAMD" and processor.family >= AMD_WITH_WIDE_UNITS
    return ONEDNN if device_type == "cpu" and is_wide and processor.has_avx512 and not processor.has_amx else TORCH


def this_processor() -> Processor:
    """Read the properties of this machine's processor; Linux only, elsewhere the vendor is unknown."""
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if sys.platform == "linux" else ""
    return read_processor(text, has_amx=torch.cpu._is_amx_tile_supported())


def read_processor(cpuinfo: str, *, has_amx: bool) -> Processor:
    """Read /proc/cpuinfo; the first of the processors counts."""
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
    """Multiply by both forms: whether oneDNN's products have float32's precision on this processor."""
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
    """Use the form of this process for the products in this context.

    Args:
        num_frames: encoder frames of the batch, with padding; below `MIN_FRAMES` torch chooses.
    """
    if _Process.form == ONEDNN and num_frames >= MIN_FRAMES:
        with onednn():
            yield
    else:
        yield


@contextmanager
def onednn() -> Iterator[None]:
    """Multiply by oneDNN in this context, in all threads of the process."""
    import torch

    mkldnn: Any = torch.backends.mkldnn  # its type lacks `matmul`
    switch = mkldnn.matmul
    before = switch.fp32_precision
    switch.fp32_precision = "bf16"
    try:
        yield
    finally:
        switch.fp32_precision = before
