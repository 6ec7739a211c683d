"""python -m asr.training.compile_ahead: compile a block in a process of its own, for inductor's cache on disk.

The block comes pickled by standard input, from the training that has started this process; nothing else may.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from asr.system.processes import die_with_parent


def compiled(block: nn.Module) -> Callable[..., Any]:
    """Return the forward pass of a class of blocks, given a block and its inputs, compiled when it is first called."""
    return torch.compile(type(block).forward, dynamic=True)


@dataclass(frozen=True)
class Inputs:
    """What a block was given, without the numbers.

    Args:
        values: of tensors one that is alike, on the device "meta"; anything else as it was.
        device: of the tensors.
        autocast: the type that products are computed in; None: their own.
    """

    values: tuple[Any, ...]
    device: str
    autocast: torch.dtype | None

    @classmethod
    def like(cls, inputs: Sequence[Any]) -> "Inputs":
        """Keep what inputs are like, in the autocast of now."""
        device = next(value for value in inputs if isinstance(value, Tensor)).device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        values = [torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value for value in inputs]
        return cls(tuple(values), device, autocast)

    def made_up(self) -> list[Any]:
        """Make up inputs that are alike; none of their frames is padding."""
        return [self._noise(value) if isinstance(value, Tensor) else value for value in self.values]

    def _noise(self, like: Tensor) -> Tensor:
        if like.is_floating_point():
            return torch.randn(like.shape, device=self.device).to(like.dtype).requires_grad_(like.requires_grad)
        return torch.zeros(like.shape, dtype=like.dtype, device=self.device)


class CompilationBeside:
    """A process that compiles a block's forward and backward pass in training.

    Args:
        block: one of those that are alike.
        inputs: of it.
    """

    def __init__(self, block: nn.Module, inputs: Inputs) -> None:
        command = [sys.executable, "-m", "asr.training.compile_ahead", str(os.getpid())]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with tempfile.TemporaryFile() as file:
            forward = vars(block).pop("forward")  # of the training
            pickle.dump((block, inputs), file)
            block.forward = forward
            file.seek(0)
            self._process = subprocess.Popen(
                command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )

    def outcome(self) -> str | None:
        """Say why it has failed, "" if it has not; None while it goes on."""
        if self._process.poll() is None:
            return None
        assert self._process.stdout is not None
        said = self._process.stdout.read().decode(errors="replace").strip()
        if self._process.returncode == 0:
            return ""
        return said or f"the process that compiles them ended with status {self._process.returncode}"

    def stop(self) -> None:
        """End it, if it goes on."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def main() -> int:
    """Compile what comes by standard input; say in a line why it fails."""
    die_with_parent(int(sys.argv[1]))
    out, sys.stdout = sys.stdout, sys.stderr  # what the compiler prints is nobody's concern
    try:
        block, inputs = pickle.load(sys.stdin.buffer)
        with torch.autocast(inputs.device, inputs.autocast, enabled=inputs.autocast is not None):
            result = compiled(block.train())(block, *inputs.made_up())
        result.float().sum().backward()
    except Exception as error:  # whatever the compiler raises is what the training has to know
        print(first_line(error), file=out)
        return 1
    return 0


def first_line(error: Exception) -> str:
    """Say what went wrong in one line."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


if __name__ == "__main__":
    sys.exit(main())
