"""Provenance of a run: command, code, libraries and machine."""

import os
import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

import asr
from asr.base.storage.location import without_secrets

LIBRARIES = ("torch", "torchaudio", "lightning", "hydra-core", "sentencepiece")
GIT_SECONDS = 10  # timeout of git
COMMIT_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Provenance:
    """Provenance of a run, each field as one line of text.

    Args:
        command: command line as it was typed.
        code: version of asr; in a git checkout, with the commit.
        libraries: versions of Python and of `LIBRARIES`.
        machine: system, number of cores, and GPUs.
    """

    command: str
    code: str
    libraries: str
    machine: str


def provenance() -> Provenance:
    """Return the provenance of this process."""
    libraries = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in LIBRARIES)]
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    machine = [f"{platform.system()} {platform.machine()}", f"{os.cpu_count()} cores", *gpus]
    return Provenance(without_secrets(shlex.join(sys.orig_argv)), _code(), ", ".join(libraries), ", ".join(machine))


def _code() -> str:
    """Return the version of asr and its commit."""
    root = Path(asr.__file__).parent.parent
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    if commit is None:
        return f"asr {asr.__version__}"
    changed = ", with changes that are not committed" if _git(root, "status", "--porcelain", "asr", "conf") else ""
    return f"asr {asr.__version__}, commit {commit[:COMMIT_DIGITS]}{changed}"


def _git(root: Path, *arguments: str) -> str | None:
    """Return git's output; None if git is absent or fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=GIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
