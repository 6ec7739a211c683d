"""A GPU that does not exist, for programs that count kernels, waits and memory on a machine without a GPU.

`null_gpu.cpp` replaces CUDA's runtime and driver, cuBLAS and cuDNN: device memory is the host's, copies are real, and
kernels are counted by name and not run. torch's dispatch, choice of kernels, caching allocator and detection of waits,
and Triton's compiler, are the real ones. Values are noise; there are no times of kernels and no NCCL.
"""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import torch

SOURCE = Path(__file__).parent / "null_gpu.cpp"
NULL_GPU = "NULL_GPU"  # environment variable: the path of the library in a process that uses it
LIBRARY = "libcuda.so.1"  # the driver's name, by which torch and Triton load it


def missing() -> str | None:
    """Return why the library cannot be built or used on this machine; None: it can."""
    if torch.version.cuda is None:
        return "torch is built without CUDA"
    if torch.cuda.is_available() and NULL_GPU not in os.environ:
        return "there is a GPU"
    if shutil.which("g++") is None:
        return "g++ is not installed"
    if not _headers().is_dir():
        return "the headers of torch's CUDA runtime are not installed"
    return None


def build(folder: Path) -> dict[str, str]:
    """Build the library in a folder; return the environment variables of a process that uses it."""
    library = folder / LIBRARY
    includes = [f"-I{SOURCE.parent}", f"-I{_headers()}"]
    options = ["-O1", "-std=c++17", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}"]
    subprocess.run(["g++", *options, *includes, str(SOURCE), "-o", str(library), "-ldl"], check=True)
    (folder / "libcuda.so").symlink_to(LIBRARY)
    return {
        NULL_GPU: str(library),
        "LD_PRELOAD": str(library),
        "LD_LIBRARY_PATH": str(folder),
        "TRITON_LIBCUDA_PATH": str(folder),
        "TORCH_CUDNN_V8_API_DISABLED": "1",
        "OMP_NUM_THREADS": "1",
    }


def _headers() -> Path:
    """Return the folder of driver_types.h, in the wheel of CUDA's runtime; it may not exist."""
    nvidia = importlib.util.find_spec("nvidia")
    folders = nvidia.submodule_search_locations if nvidia is not None else None
    major = (torch.version.cuda or "").split(".")[0]
    return Path(next(iter(folders or ["/nowhere"])), f"cu{major}", "include")
