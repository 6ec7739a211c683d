"""A program opened by ONNX Runtime."""

import importlib.util
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asr.errors import InputError, how_to_install, one_line
from asr.onnx.names import LOG_PROBS

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, RunOptions

LEAST_SECONDS = 60.0  # that a program may run
SECONDS_A_NUMBER = 10 / 8_000  # of what it is given, beside: ten seconds for a second of features
CHECK_SECONDS = 0.5
FATAL = 4  # what ONNX Runtime logs at least; its errors are raised


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
    options.log_severity_level = FATAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other work may have the cores
    named = _named(program)
    try:
        opened = onnxruntime.InferenceSession(
            program if isinstance(program, bytes) else str(program), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # one of many kinds, all of them ONNX Runtime's own
        reason = one_line(error)
        raise InputError(f"{named}: must be a program that ONNX Runtime can open; {reason}") from None
    there = ([value.name for value in opened.get_inputs()], [value.name for value in opened.get_outputs()])
    if there != ([*inputs], [*outputs]):
        must = f"{named}: must have the inputs {', '.join(inputs)} and the outputs {', '.join(outputs)}"
        raise InputError(f"{must}; got {', '.join(there[0])} and {', '.join(there[1])}.")
    return opened


def check_tokens(program: Path | bytes, opened: "InferenceSession", vocab_size: int) -> None:
    """Check that a program gives log_probs of `vocab_size` tokens (with durations, of both), for any batch.

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
    seconds = LEAST_SECONDS + SECONDS_A_NUMBER * sum(tensor.numel() for tensor in given)
    with _watchdog().ending_after(seconds) as options:
        try:
            outs = opened.run(None, inputs, options)
        except Exception as error:  # one of many kinds, all of them ONNX Runtime's own
            must = "the exported program must run on what it was exported for"
            if options.terminate:
                raise InputError(f"{must}; it had not ended after {seconds:.0f} s.") from None
            reason = " ".join(str(error).rpartition("Status Message: ")[2].split())
            reason = re.sub(r"^/\S+:\d+ .*?\) ", "", reason)  # the place in its code
            raise InputError(f"{must}; {reason[:300]}") from None
    return [torch.from_numpy(out) for out in outs]


class _Watchdog(threading.Thread):
    """Ends runs that last too long: a stranger's program may go on for ever."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="onnx-watchdog")
        self._deadlines: dict[int, tuple[float, RunOptions]] = {}

    def run(self) -> None:
        """Look at the runs every so often."""
        while True:
            time.sleep(CHECK_SECONDS)
            for deadline, options in [*self._deadlines.values()]:
                if time.monotonic() > deadline:
                    options.terminate = True

    @contextmanager
    def ending_after(self, seconds: float) -> "Iterator[RunOptions]":
        """Give the options of a run that is ended after these seconds."""
        import onnxruntime

        options = onnxruntime.RunOptions()
        options.log_severity_level = FATAL
        self._deadlines[id(options)] = time.monotonic() + seconds, options
        try:
            yield options
        finally:
            del self._deadlines[id(options)]


@cache
def _watchdog() -> _Watchdog:
    watchdog = _Watchdog()
    watchdog.start()
    return watchdog


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
        raise InputError(f"{what} must have {', '.join(missing)}; not installed. {how_to_install('onnx')}")


def _named(program: Path | bytes) -> str:
    return str(program) if isinstance(program, Path) else "the program"
