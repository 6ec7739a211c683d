"""Open and run programs with ONNX Runtime."""

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

from asr.base.onnx.data_file import check_data_file
from asr.base.onnx.names import LOG_PROBS
from asr.errors import InputError, how_to_install, reason_of

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, RunOptions

MIN_TIMEOUT_SECONDS = 60.0  # timeout for a program with empty inputs
TIMEOUT_SECONDS_PER_VALUE = 10 / 8_000  # added for each input value; a second of features adds ten seconds
CHECK_SECONDS = 0.5
FATAL = 4  # minimum level that ONNX Runtime logs; errors are raised instead


def session(
    program: Path | bytes, inputs: Sequence[str], outputs: Sequence[str], num_threads: int | None = None
) -> "InferenceSession":
    """Open a program.

    Args:
        program: an ONNX file, or its contents.
        inputs: names of the inputs that the program must have.
        outputs: names of the outputs that the program must have.
        num_threads: number of threads; None: torch's number.

    Raises:
        InputError: ONNX Runtime is not installed or cannot open the program, its inputs or outputs differ, or it reads
            weights from other files than its data file.
    """
    check_installed(("onnxruntime",), "a model in ONNX")
    check_data_file(program)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads or torch.get_num_threads()
    options.log_severity_level = FATAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads do not occupy cores
    name = _name(program)
    try:
        opened = onnxruntime.InferenceSession(
            program if isinstance(program, bytes) else str(program), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # ONNX Runtime has many exception classes without a common base
        raise InputError(f"{name}: must be a program that ONNX Runtime can open; {reason_of(error)}.") from None
    names = ([value.name for value in opened.get_inputs()], [value.name for value in opened.get_outputs()])
    if names != ([*inputs], [*outputs]):
        must = f"{name}: must have the inputs {', '.join(inputs)} and the outputs {', '.join(outputs)}"
        raise InputError(f"{must}; got {', '.join(names[0])} and {', '.join(names[1])}.")
    return opened


def check_tokens(program: Path | bytes, opened: "InferenceSession", vocab_size: int) -> None:
    """Check that a program outputs log_probs of `vocab_size` tokens for any batch size.

    Args:
        program: argument of `session`, for the error message.
        opened: result of `session`.
        vocab_size: number of tokens, plus the number of durations if the program predicts durations.

    Raises:
        InputError: the shape of log_probs differs.
    """
    [shape] = [value.shape for value in opened.get_outputs() if value.name == LOG_PROBS]
    if [shape[0], shape[-1]] != ["batch", vocab_size]:
        must = f"{_name(program)}: must give log_probs of shape (batch, ..., {vocab_size}), one for each token"
        raise InputError(f"{must}; got {shape}.")


def run(opened: "InferenceSession", *given: Tensor) -> list[Tensor]:
    """Run a program; `given` are its inputs in order."""
    names = [value.name for value in opened.get_inputs()]
    inputs = {name: tensor.contiguous().numpy() for name, tensor in zip(names, given, strict=True)}
    seconds = MIN_TIMEOUT_SECONDS + TIMEOUT_SECONDS_PER_VALUE * sum(tensor.numel() for tensor in given)
    with _watchdog().ending_after(seconds) as options:
        try:
            outs = opened.run(None, inputs, options)
        except Exception as error:  # ONNX Runtime has many exception classes without a common base
            must = "the exported program must run to completion"
            if options.terminate:
                raise InputError(f"{must}; it was stopped after {seconds:.0f} s.") from None
            reason = " ".join(str(error).rpartition("Status Message: ")[2].split())
            reason = re.sub(r"^/\S+:\d+ .*?\) ", "", reason)  # file and line of ONNX Runtime's source
            raise InputError(f"{must}; {reason[:300].rstrip('.')}.") from None
    return [torch.from_numpy(out) for out in outs]


class _Watchdog(threading.Thread):
    """Terminates runs after a timeout, because an untrusted program might never end."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="onnx-watchdog")
        self._deadlines: dict[int, tuple[float, RunOptions]] = {}

    def run(self) -> None:
        """Check the deadlines of all runs every CHECK_SECONDS."""
        while True:
            time.sleep(CHECK_SECONDS)
            for deadline, options in [*self._deadlines.values()]:
                if time.monotonic() > deadline:
                    options.terminate = True

    @contextmanager
    def ending_after(self, seconds: float) -> "Iterator[RunOptions]":
        """Yield options for a run that is terminated after a timeout in seconds."""
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
    """Run a program on a batch and its lengths; return the concatenated outputs (B, T', ...) and their lengths (B,)."""
    *outs, out_lengths = run(opened, batch.float(), lengths)
    return torch.cat(outs, dim=-1), out_lengths


def check_installed(packages: Sequence[str], user: str) -> None:
    """Check that optional packages are installed.

    Raises:
        InputError: a package is missing.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"{user} needs {', '.join(missing)} to be installed. {how_to_install('onnx')}")


def _name(program: Path | bytes) -> str:
    return str(program) if isinstance(program, Path) else "the program"
