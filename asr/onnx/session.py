"""A program opened by ONNX Runtime."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asr.errors import InputError
from asr.onnx.program import LOG_PROBS

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


def session(
    program: Path | bytes, inputs: Sequence[str], outputs: Sequence[str], num_threads: int | None = None
) -> "InferenceSession":
    """Open a program.

    Args:
        program: an ONNX file, or what one holds.
        inputs: names that it must have.
        outputs: names that it must have.
        num_threads: None: as many as torch has.

    Raises:
        InputError: ONNX Runtime is not installed, or cannot open it, or its inputs and outputs are others.
    """
    check_installed(("onnxruntime",), "a model in ONNX")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads or torch.get_num_threads()
    options.log_severity_level = 3  # errors
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other work may have the cores
    named = _named(program)
    try:
        opened = onnxruntime.InferenceSession(
            program if isinstance(program, bytes) else str(program), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # one of many kinds, all of them ONNX Runtime's own
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{named}: must be a program that ONNX Runtime can open; {reason}") from None
    there = ([value.name for value in opened.get_inputs()], [value.name for value in opened.get_outputs()])
    if there != ([*inputs], [*outputs]):
        must = f"{named}: must have the inputs {', '.join(inputs)} and the outputs {', '.join(outputs)}"
        raise InputError(f"{must}; got {', '.join(there[0])} and {', '.join(there[1])}.")
    return opened


def check_tokens(program: Path | bytes, opened: "InferenceSession", vocab_size: int) -> None:
    """Check that a program gives log_probs of so many tokens, for any batch.

    Args:
        program: as `session` got it, for the error.
        opened: what that gave.
        vocab_size: V.

    Raises:
        InputError: it does not.
    """
    [shape] = [value.shape for value in opened.get_outputs() if value.name == LOG_PROBS]
    if [shape[0], shape[-1]] != ["batch", vocab_size]:
        must = f"{_named(program)}: must give as many log_probs as the model has tokens, {vocab_size}"
        raise InputError(f"{must}; got {shape}.")


def run(opened: "InferenceSession", *given: Tensor) -> list[Tensor]:
    """Run a program of what it takes, in its order."""
    names = [value.name for value in opened.get_inputs()]
    inputs = {name: tensor.contiguous().numpy() for name, tensor in zip(names, given, strict=True)}
    return [torch.from_numpy(out) for out in opened.run(None, inputs)]


def run_net(opened: "InferenceSession", batch: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Run a program of a batch and its lengths; all that it gives of each frame, (B, T', ...), and (B,)."""
    *outs, out_lengths = run(opened, batch.float(), lengths)
    return torch.cat(outs, dim=-1), out_lengths


def check_installed(packages: Sequence[str], what: str) -> None:
    """Check that optional packages are there.

    Raises:
        InputError: one is not.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"{what} must have {', '.join(missing)}; not installed. pip install '.[onnx]'")


def _named(program: Path | bytes) -> str:
    return str(program) if isinstance(program, Path) else "the program"
