"""Common parts of the commands that use a model: options, loading, errors and exit status."""

import argparse
import gc
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from asr.base.settings.rule import WORKERS
from asr.base.system.files import NO_ROOM
from asr.base.system.processes import INTERRUPTED, reader_has_gone, spin_briefly
from asr.base.text.numbers import duration, finite
from asr.base.text.printable import printable
from asr.core.cli.parser import CommandParser
from asr.core.decoder_choice import check_used, of_options
from asr.errors import InputError, StoreError, is_out_of_memory

if TYPE_CHECKING:
    from rich.progress import Progress

    from asr.core.data.manifest import Utterance
    from asr.core.recognition.inference import Inference
    from asr.core.recognition.recognizer import Recognizer

PRECISIONS = ("float32", "bfloat16", "float16")
MODELS = "a run folder, a bundle, a .ckpt, or a folder of asr.export"
PRECISION_HELP = "type of matrix products (default float32); in 16 bits, other recordings in a batch may affect a text"
LINE_SECONDS = 10.0  # time between two lines of progress, if no progress bar is shown
SHORTEST_CHUNK = 1.0  # seconds; shorter chunks contain no complete words


def model_parser(
    command: str,
    description: str,
    model: str = MODELS,
    workers: bool = True,
    language: bool = False,
) -> CommandParser:
    """Make a parser with the argument MODEL and the options of inference.

    Args:
        command: name of the command.
        description: what the command does, for --help.
        model: what MODEL may be, for --help.
        workers: whether to add --num-workers.
        language: whether to add --language, which tells a model with a prompt the language.
    """
    parser = CommandParser(prog=f"python -m asr.{command}", description=description)
    parser.add_argument("model", metavar="MODEL", help=model)
    add_base(parser)
    net = parser.add_argument_group("inference")
    net.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, mps, …; auto: cuda if available (default)")
    net.add_argument("--precision", choices=PRECISIONS, default="float32", help=PRECISION_HELP)
    if workers:
        net.add_argument("--num-workers", type=int, default=0, metavar="N", help="processes to read audio (default 0)")
    else:
        parser.set_defaults(num_workers=0)
    net.add_argument("--batch-seconds", type=float, metavar="S", help="padded seconds per batch; limits memory (200)")
    net.add_argument("--chunk", type=float, metavar="S", help="recognise longer recordings in chunks of S seconds (30)")
    net.add_argument(
        "--context", type=float, metavar="S", help="context at each end of a chunk; words in it are discarded (4)"
    )
    net.add_argument("--segment", choices=("chunks", "silence"), default="chunks", help="how to cut long recordings")
    add_latency(net)
    if language:
        spoken = "language of the recordings, for a model with a prompt (default: that of the manifest's lines)"
        parser.add_argument("--language", metavar="NAME", help=spoken)
    return parser


def add_latency(parser: "argparse._ActionsContainer") -> None:
    """Add the option that chooses one of the latencies of a causal model."""
    latency = "latency of a causal streaming model, one of its list (default: the model's own)"
    parser.add_argument("--latency", type=finite, metavar="S", help=latency)


def add_base(parser: CommandParser, required: bool = False) -> None:
    """Add the options for the base model of an adapter, and for plugins."""
    parser.add_argument(
        "--base",
        metavar="MODEL",
        required=required,
        help="base of an adapter (adapter=lora): the model that was its init.from in training",
    )
    parser.add_plugins()


def load_model(options: argparse.Namespace, language: str | None = None) -> "Recognizer":
    """Load the model with the decoder and device of the options; a language must be one that its prompt knows."""
    from asr.core.data.labels import LANGUAGE
    from asr.core.hub.models import load_recognizer

    recognizer = load_recognizer(
        options.model, decode=of_options(options), base=options.base, characters=characters(options)
    )
    check_used(recognizer, options)
    if language is not None:
        recognizer.model.labels.check(LANGUAGE, language, "--language")
    return move_to_device(recognizer, options)


def move_to_device(recognizer: "Recognizer", options: argparse.Namespace) -> "Recognizer":
    """Move a recogniser to the device that the options choose, and set its precision and its latency."""
    import torch

    from asr.core.recognition.latency import set_latency

    if options.latency is not None:
        set_latency(recognizer.model, options.latency, "--latency")
    is_program = recognizer.model.is_program
    if is_program and options.precision != "float32":
        raise InputError(f"--precision must be float32 with a model exported to ONNX; got {options.precision!r}.")
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() and not is_program else "cpu"
    recognizer.recording_encoder.precision = None if is_program else getattr(torch, options.precision)
    return recognizer.to(device, "--device")


def characters(options: argparse.Namespace) -> str | None:
    """Return the language or script of --characters, after checking its name."""
    name: str | None = getattr(options, "characters", None)
    if name is not None:
        from asr.base.text.alphabets import find_alphabet

        find_alphabet(name, "--characters")
    return name


def inference(options: argparse.Namespace) -> "Inference":
    """Collect the options of inference: batches, and the cutting of long recordings."""
    from asr.core.data.batch_plan import BatchBounds
    from asr.core.recognition.chunks import ChunkBounds
    from asr.core.recognition.inference import INFERENCE, Inference
    from asr.core.recognition.long_form import at_silences

    WORKERS.check("--num-workers", options.num_workers)
    nbest = getattr(options, "nbest", INFERENCE.nbest)
    for name, value in (("batch-seconds", options.batch_seconds), ("chunk", options.chunk), ("nbest", nbest)):
        if value is not None and not value > 0:
            raise InputError(f"--{name} must be positive; got {value}.")
    if options.chunk is not None and options.chunk < SHORTEST_CHUNK:
        raise InputError(f"--chunk must be at least {SHORTEST_CHUNK:g} seconds; got {options.chunk}.")
    standard = INFERENCE.chunks
    chunk = standard.chunk_seconds if options.chunk is None else options.chunk
    context = min(standard.context_seconds, chunk / 4) if options.context is None else options.context
    if not 0 <= context < chunk / 2:
        raise InputError(f"--context must be at least 0 and less than half of --chunk; got {context} and {chunk}.")
    batch_seconds = options.batch_seconds or INFERENCE.batches.seconds
    return Inference(
        BatchBounds(batch_seconds=batch_seconds, max_utterances=INFERENCE.batches.max_utterances),
        ChunkBounds(chunk, context),
        at_silences if options.segment == "silence" else None,
        nbest,
        options.num_workers,
        language=getattr(options, "language", None),
    )


def progress_bar(is_printing: bool = False) -> "Progress":
    """Make a progress bar on stderr, which is hidden if stderr is not a terminal.

    Args:
        is_printing: results are printed while the bar is shown; if stdout is a terminal, the bar is hidden, because it
            would break their lines.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    hidden = not sys.stderr.isatty() or (is_printing and sys.stdout.isatty())
    return Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False, disable=hidden)


@contextmanager
def audio_progress(
    description: str, utterances: "Iterable[Utterance]", is_printing: bool = False
) -> "Iterator[Callable[[float], None]]":
    """Show the progress through the audio of utterances; yield a function to call with the seconds of audio processed.

    Where the progress bar is hidden, a line is printed to stderr every LINE_SECONDS. `is_printing`: see `progress_bar`.
    """
    total = sum(utterance.duration for utterance in utterances)
    begun = announced = time.monotonic()
    done = 0.0
    with progress_bar(is_printing) as progress:
        task = progress.add_task(description, total=total)

        def on_progress(seconds: float) -> None:
            nonlocal announced, done
            done += seconds
            progress.advance(task, seconds)
            now = time.monotonic()
            if progress.disable and now - announced > LINE_SECONDS and 0 < done < total:
                announced = now
                left = duration((now - begun) * (total - done) / done)
                share = f"{duration(done)} of {duration(total)} of audio"
                print(printable(f"{description}: {share}, {left} left"), file=sys.stderr, flush=True)

        yield on_progress


def check_language(language: str | None) -> None:
    """Check that a language is a code of ISO 639."""
    if language is not None and not re.fullmatch("[a-z]{2,3}", language):
        raise InputError(f"--language must be two or three lower-case letters, such as en; got {language!r}.")


def complain(message: str) -> None:
    """Print an error in one line; the command continues."""
    print(f"error: {printable(message)}", file=sys.stderr)


def complain_of(name: str, reason: str) -> None:
    """Print an error about a recording; it begins with the recording's name, unless the reason contains this name."""
    is_named = reason.startswith(f"{name}: ") or f"(id {name!r})" in reason
    complain(reason if is_named else f"{name}: {reason}")


def run_command(command: Callable[[Sequence[str] | None], int]) -> None:
    """Run a command and exit; an InputError or StoreError becomes one line and status 1, Ctrl-C status 130."""
    spin_briefly()
    try:
        status = command(None)
        sys.stdout.flush()
    except (InputError, StoreError) as error:
        complain(str(error))
        status = 1
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        complain(f"a batch must fit into memory; lower --batch-seconds or --chunk. {reason}")
        status = 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = INTERRUPTED
    except BrokenPipeError:  # the program that reads the output, such as `head`, has ended
        status = 1
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        complain(f"the disk must have room for {error.filename or 'the output'}; got: {error.strerror}.")
        status = 1
    reader_has_gone()
    gc.freeze()  # avoids garbage collection at exit, which takes a quarter of a second with torch
    sys.exit(status)
