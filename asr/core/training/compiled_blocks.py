"""Compile an encoder's blocks in the background; training uses uncompiled blocks until the code is ready."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import lightning.pytorch as pl
import torch
from torch import nn

from asr.core.training.compile_ahead import CompilationBeside, Inputs, compiled, first_line
from asr.interfaces import Encoder

logger = logging.getLogger(__name__)

Forward = Callable[..., Any]  # forward pass of a class of blocks: maps a block and its inputs to its output


class Compiler(Protocol):
    """A compiler of blocks: `Inductor`, or a fake in tests.

    `beside` starts a compilation for inputs of the given shapes while the training continues. The function that
    `program` returns may compile at its first call; this call is fast if the compilation by `beside` has finished.
    """

    def errors(self) -> tuple[type[Exception], ...]:
        """Exceptions that a program raises if it cannot be compiled."""

    def beside(self, block: nn.Module, inputs: Inputs) -> "Beside": ...
    def program(self, block: nn.Module) -> Forward: ...


class Beside(Protocol):
    """A compilation in progress."""

    def outcome(self) -> str | None:
        """Return the reason for a failure; "" after a success; None while the compilation runs."""

    def stop(self) -> None: ...


class Inductor:
    """Compiler that first runs torch.compile in another process, to fill inductor's cache on disk.

    A thread cannot be used, because tracing temporarily changes the random state of the whole process.
    """

    def errors(self) -> tuple[type[Exception], ...]:
        """Exceptions that a program raises if it cannot be compiled."""
        from torch._dynamo.exc import TorchDynamoException  # imports the compiler

        return (TorchDynamoException,)

    def beside(self, block: nn.Module, inputs: Inputs) -> Beside:
        """Start a compilation in another process."""
        return CompilationBeside(block, inputs)

    def program(self, block: nn.Module) -> Forward:
        """Return the block's forward pass, which is compiled at its first call, once for all blocks and lengths."""
        return compiled(block)


class CompiledBlocks(pl.Callback):
    """Run an encoder's blocks as one compiled program for all blocks and all lengths.

    Only training steps are compiled; they take most of the time. Blocks run uncompiled until the program is ready, and
    in batches of one utterance or one frame, for which torch would compile another program. If the compilation fails,
    blocks remain uncompiled, and the log gives the reason.

    Args:
        encoder: encoder whose blocks are compiled; all blocks have the same class and shapes.
        compiler: compiles the blocks.
    """

    def __init__(self, encoder: Encoder, compiler: Compiler) -> None:
        self._name = type(encoder).__name__
        self._is_streaming = encoder.streaming is not None
        self._blocks = [block for _, block in encoder.named_blocks()]
        self._compiler = compiler
        self._beside: Beside | None = None
        self._begun = 0.0
        self._program: Forward | None = None
        self._seen: Inputs | None = None  # inputs of the first block
        self.settled = False  # True: the decision to run blocks compiled or uncompiled is final

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Replace the forward passes of the blocks, after the trial of the largest batches."""
        if problem := self._hindrance(trainer.world_size):
            self._stay(problem)
            return
        for block in self._blocks:
            block.module.forward = partial(self._forward, block.module)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Start the compilation after the first batch, whose inputs it needs; use the program when it is ready."""
        if self.settled:
            return
        if self._beside is None:
            if self._seen is not None:
                self._beside, self._begun = self._compiler.beside(self._blocks[0].module, self._seen), time.monotonic()
                logger.info("the encoder's blocks are being compiled in the background; training starts uncompiled")
            return
        problem = self._beside.outcome()
        if problem:
            self._stay(problem)
        elif problem is not None:
            self._program, self.settled = self._compiler.program(self._blocks[0].module), True
            seconds = time.monotonic() - self._begun
            logger.info("step %d: the encoder's blocks run compiled, after %.0f s", trainer.global_step + 1, seconds)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop a compilation in progress."""
        self._stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Stop a compilation in progress."""
        self._stop()

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompiledBlocks":
        """Return self, because copies of a model share the program, which takes the block as an argument."""
        return self

    def _forward(self, block: nn.Module, *inputs: Any) -> Any:
        plain = type(block).forward
        if not (block.training and torch.is_grad_enabled()) or 1 in inputs[0].shape:
            return plain(block, *inputs)
        if self._program is None:
            self._seen = self._seen or Inputs.like(inputs)
            return plain(block, *inputs)
        try:
            return self._program(block, *inputs)
        except self._compiler.errors() as error:
            self._program = None
            self._stay(first_line(error))
            return plain(block, *inputs)

    def _stop(self) -> None:
        if self._beside is not None:
            self._beside.stop()

    def _hindrance(self, world_size: int) -> str:
        """Return the reason why blocks cannot be compiled; "" if they can be compiled."""
        if not self._blocks:
            return f"{self._name} has no blocks"
        if len({(type(block.module), block.dim) for block in self._blocks}) != 1:
            return "the blocks have different classes or dimensions"
        if self._is_streaming:
            return f"{self._name} draws chunk sizes, which would need a program each"
        if any("forward" in vars(block.module) for block in self._blocks):
            return "gradient_checkpointing=true runs them twice"
        if world_size > 1:
            return f"untested with several processes ({world_size})"
        return ""

    def _stay(self, problem: str) -> None:
        self.settled = True
        logger.warning("the encoder's blocks are not compiled: %s", problem)
