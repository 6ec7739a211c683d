"""python -m asr.core.training.compile_ahead: compile a block in a separate process, to fill inductor's cache on disk.

The training process starts this one and sends the pickled block to its standard input. Nothing else may be sent,
because unpickling can run code.
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

from asr.base.system.processes import die_with_parent


def compiled(block: nn.Module) -> Callable[..., Any]:
    """Return the forward pass of a block's class, compiled at the first call; it takes a block and its inputs.

    Inductor compiles in this process only, because it waits forever for a worker process that is killed, as `timeout`
    kills all processes of a command.
    """
    from torch._inductor import config as inductor  # imports the compiler

    inductor.compile_threads = 1
    return torch.compile(type(block).forward, dynamic=True)


@dataclass(frozen=True)
class Inputs:
    """Shapes and types of a block's inputs.

    Args:
        values: inputs, with tensors moved to the device "meta".
        device: device of the original tensors.
        autocast: dtype of matrix products under autocast; None: no autocast.
    """

    values: tuple[Any, ...]
    device: str
    autocast: torch.dtype | None

    @classmethod
    def like(cls, inputs: Sequence[Any]) -> "Inputs":
        """Describe inputs and the current autocast."""
        device = next(value for value in inputs if isinstance(value, Tensor)).device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        values = [torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value for value in inputs]
        return cls(tuple(values), device, autocast)

    def made_up(self) -> list[Any]:
        """Make random inputs with these shapes and types, without padding."""
        return [self._noise(value) if isinstance(value, Tensor) else value for value in self.values]

    def _noise(self, like: Tensor) -> Tensor:
        if like.is_floating_point():
            return torch.randn(like.shape, device=self.device).to(like.dtype).requires_grad_(like.requires_grad)
        return torch.zeros(like.shape, dtype=like.dtype, device=self.device)


class CompilationBeside:
    """A process that compiles a block's forward and backward pass while the training continues.

    Args:
        block: any block of the encoder; all blocks have the same class and shapes.
        inputs: inputs of the block.
    """

    def __init__(self, block: nn.Module, inputs: Inputs) -> None:
        command = [sys.executable, "-m", "asr.core.training.compile_ahead", str(os.getpid())]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with tempfile.TemporaryFile() as file:
            forward = vars(block).pop("forward")  # set by CompiledBlocks, cannot be pickled
            pickle.dump((block, inputs), file)
            block.forward = forward
            file.seek(0)
            self._process = subprocess.Popen(
                command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )

    def outcome(self) -> str | None:
        """Return the reason for a failure; "" after a success; None while the compilation runs."""
        if self._process.poll() is None:
            return None
        assert self._process.stdout is not None
        message = self._process.stdout.read().decode(errors="replace").strip()
        if self._process.returncode == 0:
            return ""
        return message or f"the process that compiles them ended with status {self._process.returncode}"

    def stop(self) -> None:
        """Kill the process if it is still running."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def main() -> int:
    """Compile the block from standard input; print the reason for a failure in one line."""
    die_with_parent(int(sys.argv[1]))
    out, sys.stdout = sys.stdout, sys.stderr  # hides the compiler's output
    try:
        block, inputs = pickle.load(sys.stdin.buffer)
        with torch.autocast(inputs.device, inputs.autocast, enabled=inputs.autocast is not None):
            result = compiled(block.train())(block, *inputs.made_up())
        result.float().sum().backward()
    except Exception as error:  # any failure is reported to the training process
        print(first_line(error), file=out)
        return 1
    return 0


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its class name."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


if __name__ == "__main__":
    sys.exit(main())
