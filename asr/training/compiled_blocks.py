"""Compiling an encoder's blocks: training begins without, and changes over when a program of them is there."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import lightning.pytorch as pl
import torch
from torch import nn

from asr.interfaces import Encoder
from asr.training.compile_ahead import CompilationBeside, Inputs, compiled, first_line

logger = logging.getLogger(__name__)

Forward = Callable[..., Any]  # of a class of blocks: a block and its inputs to its output


class Compiler(Protocol):
    """What compiles; `Inductor`, but in tests.

    `beside` begins to compile for inputs like these while the training goes on, so that `program`, which may be
    compiled where it is first called, finds most of the work done.
    """

    def errors(self) -> tuple[type[Exception], ...]:
        """What a program raises that cannot be compiled."""

    def beside(self, block: nn.Module, inputs: Inputs) -> "Beside": ...
    def program(self, block: nn.Module) -> Forward: ...


class Beside(Protocol):
    """A compilation in the works."""

    def outcome(self) -> str | None:
        """Say why it has failed, "" if it has not; None while it goes on."""

    def stop(self) -> None: ...


class Inductor:
    """torch.compile, in another process first, which leaves what it compiled in inductor's cache on disk.

    Not in another thread: while it traces, torch sets the random state of the whole process aside.
    """

    def errors(self) -> tuple[type[Exception], ...]:
        """What a program raises that cannot be compiled."""
        from torch._dynamo.exc import TorchDynamoException  # imports the compiler

        return (TorchDynamoException,)

    def beside(self, block: nn.Module, inputs: Inputs) -> Beside:
        """Begin."""
        return CompilationBeside(block, inputs)

    def program(self, block: nn.Module) -> Forward:
        """Return the block's forward pass, compiled once for all blocks and lengths."""
        return compiled(block)


class CompiledBlocks(pl.Callback):
    """Run an encoder's blocks, which are alike, as one compiled program for all of them and for all lengths.

    Only in training, where the time is. Until the program is there, and if it cannot be made, blocks run as they are;
    why is a line of the log.

    Args:
        encoder: whose `blocks` are compiled.
        compiler: that does it.
    """

    def __init__(self, encoder: Encoder, compiler: Compiler) -> None:
        self._encoder = encoder
        self._compiler = compiler
        self._beside: Beside | None = None
        self._begun = 0.0
        self._program: Forward | None = None
        self._seen: Inputs | None = None  # what the first block was given
        self.settled = False  # blocks run from now on as they do now

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook, when the largest batches have been tried."""
        if problem := self._hindrance(trainer.world_size):
            self._stay(problem)
            return
        for block in self._encoder.blocks:
            block.forward = partial(self._forward, block)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Lightning's hook: begin when a first batch has shown what blocks are given, and change over."""
        if self.settled:
            return
        if self._beside is None:
            if self._seen is not None:
                self._beside, self._begun = self._compiler.beside(self._encoder.blocks[0], self._seen), time.monotonic()
                logger.info("the encoder's blocks are compiled beside the training, which begins without")
            return
        problem = self._beside.outcome()
        if problem:
            self._stay(problem)
        elif problem is not None:
            self._program, self.settled = self._compiler.program(self._encoder.blocks[0]), True
            seconds = time.monotonic() - self._begun
            logger.info("step %d: the encoder's blocks run compiled, after %.0f s", trainer.global_step + 1, seconds)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook."""
        self._stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Lightning's hook."""
        self._stop()

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompiledBlocks":
        """Be shared by copies of a model: a program is given the block whose weights it uses."""
        return self

    def _forward(self, block: nn.Module, *inputs: Any) -> Any:
        plain = type(block).forward
        if not (block.training and torch.is_grad_enabled()):
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
        """Say why blocks cannot be compiled; nothing if they can."""
        blocks = self._encoder.blocks
        if not blocks:
            return f"{type(self._encoder).__name__} has none"
        if len({type(block) for block in blocks}) != 1:
            return "they are not of one class"
        if any("forward" in vars(block) for block in blocks):
            return "gradient_checkpointing=true runs them twice"
        if world_size > 1:
            return f"{world_size} processes train together, for which nobody has tried it"
        return ""

    def _stay(self, problem: str) -> None:
        self.settled = True
        logger.warning("the encoder's blocks run as they are, not compiled: %s", problem)
