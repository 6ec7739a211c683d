"""The compiled functions of torchaudio, and those that Triton compiles, where they can be used."""

import logging
import os
from functools import cache
from typing import Any

import torch

logger = logging.getLogger(__name__)


@cache
def torchaudio_functions() -> Any | None:
    """Return torchaudio.functional; None if torchaudio cannot be imported, for example beside a torch for another CUDA.

    The reason is logged once for each process.
    """
    try:
        import torchaudio.functional
    except (ImportError, OSError, RuntimeError) as error:  # it is absent, or its libraries do not fit torch's
        reason = " ".join(str(error).split())
        logger.warning("torchaudio cannot be used, so alignments take longer: %s", reason)
        return None
    return torchaudio.functional


def triton_lattice(device: torch.device) -> Any | None:
    """Return the module of the lattices' kernel if Triton runs on the device, otherwise None.

    Triton runs on GPUs, and on the CPU if TRITON_INTERPRET is 1. Why it fails on a GPU is logged once for each process.
    """
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return None
    return _compiled_lattice(device)


@cache
def _compiled_lattice(device: torch.device) -> Any | None:
    """Import the module, and compile and run the kernel for the smallest lattice."""
    try:
        from asr.base.kernels import lattice_triton

        doors, lengths, last_states = torch.zeros(3, 1, dtype=torch.long, device=device)
        lattice_triton.ctc_paths(torch.zeros(1, 1, 1, device=device), doors, lengths, last_states)
    except Exception as error:  # Triton is absent, there is no C compiler, or the GPU is not one of its targets
        reason = " ".join(str(error).split())
        logger.warning("Triton cannot be used, so losses take longer: %s", reason)
        return None
    return lattice_triton
