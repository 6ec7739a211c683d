"""Compilation of an encoder's blocks by torch.compile: one program for all blocks and lengths, and the same weights."""

import logging

from asr.interfaces import Encoder

logger = logging.getLogger(__name__)


def compile_blocks(encoder: Encoder, world_size: int) -> None:
    """Compile the blocks of an encoder in place, at their first calls; a warning says why blocks cannot be compiled."""
    blocks = [block for _, block in encoder.named_blocks()]
    problems = {
        "the encoder has no blocks": not blocks,
        "they have different classes, dimensions or strides": len({(type(b.module), b.dim, b.stride) for b in blocks})
        > 1,
        "the encoder draws chunk sizes, which would need a program each": encoder.streaming is not None,
        "gradient_checkpointing=true runs them twice": any("forward" in vars(block.module) for block in blocks),
        f"untested with several processes ({world_size})": world_size > 1,
    }
    if problem := next((problem for problem, applies in problems.items() if applies), None):
        logger.warning("the encoder's blocks are not compiled: %s", problem)
        return
    from torch._inductor import config as inductor  # imports the compiler

    inductor.compile_threads = 1  # with more, torch waits forever if a process that compiles is killed
    for block in blocks:
        block.module.compile(dynamic=True)
    logger.info("the encoder's blocks are compiled: the first steps and the first validation take minutes")


def compile_failure(error: BaseException) -> str | None:
    """Return the reason, in one line, if an error is the compiler's; None for other errors."""
    from torch._dynamo.exc import TorchDynamoException  # imports the compiler

    if not isinstance(error, TorchDynamoException):
        return None
    cause = getattr(error, "inner_exception", error)
    return str(cause).strip().partition("\n")[0] or type(cause).__name__
