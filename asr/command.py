"""What the commands that use a model share: their options, and how they end."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from asr.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress

    from asr.recognizer import Recognizer

INTERRUPTED = 130  # 128 + SIGINT, as shells count


def model_parser(command: str, description: str) -> argparse.ArgumentParser:
    """Make a parser that knows MODEL, --device and --num-workers."""
    parser = argparse.ArgumentParser(prog=f"python -m asr.{command}", description=description)
    parser.add_argument("model", metavar="MODEL", help="a run folder, a bundle, or a .ckpt")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, …; auto: cuda if there is one (default)")
    parser.add_argument("--num-workers", type=int, default=0, metavar="N", help="processes that read audio (default 0)")
    return parser


def load_model(options: argparse.Namespace) -> "Recognizer":
    """Load the model that the options name, on the device they name."""
    import torch

    from asr.checkpoint import load_recognizer

    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.num_workers < 0:
        raise InputError(f"--num-workers must not be negative; got {options.num_workers}.")
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--device must be one that torch can use here; got {device!r}: {reason}") from None
    return load_recognizer(options.model, device)


def progress_bar() -> "Progress":
    """Make a bar on stderr; none where no one would see it, or where it would get between lines on stdout."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = not sys.stderr.isatty() or sys.stdout.isatty()
    return Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False, disable=hidden)


def complain(message: str) -> None:
    """Name a problem that does not end the command."""
    print(f"error: {message}", file=sys.stderr)


def run_command(command: Callable[[Sequence[str] | None], int]) -> None:
    """Run a command and end the process: an input error is one line and status 1, Ctrl-C is status 130."""
    try:
        status = command(None)
        sys.stdout.flush()
    except InputError as error:
        complain(str(error))
        status = 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = INTERRUPTED
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)
