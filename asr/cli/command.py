"""What the commands that use a model share: their options, and how they end."""

import argparse
import gc
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asr.errors import InputError, StoreError, is_out_of_memory
from asr.settings.conf import CONF
from asr.settings.rule import WORKERS
from asr.system.files import NO_ROOM
from asr.system.processes import INTERRUPTED, reader_has_gone, spin_briefly
from asr.text.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress

    from asr.data.manifest import Utterance
    from asr.recognition.inference import Inference
    from asr.recognition.recognizer import Recognizer

PRECISIONS = ("float32", "bfloat16", "float16")
MODELS = "a run folder, a bundle, a .ckpt, or a folder of asr.export"
PRECISION_HELP = "of its products (default float32); in others a text may hang on the recordings beside it in a batch"
SHORTEST_CHUNK = 1.0  # seconds; in less there is no word to be heard
DECODERS = sorted(file.stem for file in (CONF / "decode").glob("*.yaml"))
FUSION_OPTIONS = (  # that stand for settings of decode.fusion
    *("lm", "lm_unit", "lm_weight", "word_insertion_bonus", "unknown_score", "spelling"),
    *("lexicon", "hotwords", "hotword_score"),
)
RESCORING_OPTIONS = ("language_model", "rescoring_weight")  # of decode=lm_rescoring


def model_parser(
    command: str,
    description: str,
    model: str = MODELS,
    workers: bool = True,
) -> argparse.ArgumentParser:
    """Make a parser that knows MODEL, and what bounds its memory; with `workers` other processes may read audio."""
    parser = argparse.ArgumentParser(prog=f"python -m asr.{command}", description=description)
    parser.add_argument("model", metavar="MODEL", help=model)
    add_base(parser)
    net = parser.add_argument_group("running the net")
    net.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, mps, …; auto: cuda if there is one (default)")
    net.add_argument("--precision", choices=PRECISIONS, default="float32", help=PRECISION_HELP)
    if workers:
        net.add_argument("--num-workers", type=int, default=0, metavar="N", help="processes to read audio (default 0)")
    else:
        parser.set_defaults(num_workers=0)
    net.add_argument("--batch-seconds", type=float, metavar="S", help="audio at once, padded: what bounds memory (200)")
    net.add_argument("--chunk", type=float, metavar="S", help="longer recordings are recognised in chunks of it (30)")
    net.add_argument("--context", type=float, metavar="S", help="heard at each end of a chunk, but not taken (4)")
    net.add_argument(
        "--segment", choices=("chunks", "silence"), default="chunks", help="or cut long recordings at silences"
    )
    return parser


def add_base(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """Add the option that names the base of an adapter."""
    parser.add_argument(
        "--base", metavar="MODEL", required=required, help="of an adapter (adapter=lora): the model it was trained from"
    )


def add_decoding(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a decoder other than the model's own."""
    search = parser.add_argument_group("decoding (the model's own settings, unless given)")
    names = ", ".join(DECODERS)
    lexicon = "allow its words only: the first of each line (what follows, such as a pronunciation, is not read), or "
    lexicon += "those of an ARPA file"
    implied = "the following imply the beam search beside a greedy one"
    search.add_argument("--decode", choices=DECODERS, metavar="NAME", help=f"{names}; {implied}")
    search.add_argument("--beam", type=int, metavar="N", help="hypotheses kept from step to step")
    search.add_argument("--lm", metavar="FILE", help="language model: ARPA, KenLM's binary, or of asr.train_lm")
    search.add_argument("--lm-unit", choices=("word", "token"), help="token: made by asr.ngram --tokens")
    search.add_argument("--lm-weight", type=finite, metavar="W", help="factor of its log-probabilities")
    search.add_argument("--word-insertion-bonus", type=finite, metavar="S", help="added for each word")
    search.add_argument("--unknown-score", type=finite, metavar="S", help="added for each word that it does not know")
    search.add_argument("--spelling", metavar="FILE", help="how unknown words are spelled, by asr.ngram --spelling")
    search.add_argument("--language-model", metavar="MODEL", help="neural, of asr.train_lm: rescores the hypotheses")
    search.add_argument("--rescoring-weight", type=finite, metavar="W", help="factor of its log-probabilities")
    search.add_argument("--lexicon", metavar="FILE", help=lexicon)
    search.add_argument("--hotwords", metavar="FILE", help="names and terms to be heard more easily, one a line")
    search.add_argument("--hotword-score", type=finite, metavar="S", help="bonus for each of their words")


def finite(text: str) -> float:
    """Read an option's number; infinity and NaN are none."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


finite.__name__ = "number"  # as argparse calls it: invalid number value


def load_model(options: argparse.Namespace) -> "Recognizer":
    """Load the model that the options name, with the decoder and on the device they name."""
    from asr.interchange.models import load_recognizer

    recognizer = load_recognizer(options.model, decode=decoder(options), base=options.base)
    check_used(recognizer, options)
    return place(recognizer, options)


def check_used(recognizer: "Recognizer", options: argparse.Namespace) -> None:
    """Check that no option is for a language model, or for hotwords, that are not there."""
    decode = recognizer.decode
    has_lm, has_hotwords = "lm_weight" in decode.tunable, any(decode.hotwords)
    for key, needed, is_there in (
        ("lm_unit", "lm", has_lm),
        ("lm_weight", "lm", has_lm),
        ("word_insertion_bonus", "lm", has_lm),
        ("unknown_score", "lm", has_lm),
        ("spelling", "lm", has_lm),
        ("hotword_score", "hotwords", has_hotwords),
        ("rescoring_weight", "language_model", "rescoring_weight" in decode.tunable),
    ):
        if not is_there and getattr(options, key, None) is not None:
            raise InputError(f"{_named(key)} must go with {_named(needed)}; the model has none of its own.")


def _named(key: str) -> str:
    """An option as it is written."""
    return "--" + key.replace("_", "-")


def place(recognizer: "Recognizer", options: argparse.Namespace) -> "Recognizer":
    """Put a recogniser on the device that the options name, and have it compute in their precision."""
    import torch

    is_program = recognizer.model.is_program
    if is_program and options.precision != "float32":
        raise InputError(f"--precision must be float32 with a model exported to ONNX; got {options.precision!r}.")
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() and not is_program else "cpu"
    recognizer.recording_encoder.precision = None if is_program else getattr(torch, options.precision)
    return recognizer.to(device, "--device")


def decoder(options: argparse.Namespace) -> dict[str, Any]:
    """Collect the decoder's settings that were given."""
    fusion = {key: getattr(options, key) for key in FUSION_OPTIONS if getattr(options, key, None) is not None}
    beam = getattr(options, "beam", None)
    rescoring = {key: getattr(options, key) for key in RESCORING_OPTIONS if getattr(options, key, None) is not None}
    given = {**({} if beam is None else {"beam": beam}), **rescoring, **fusion}
    name = getattr(options, "decode", None)
    if name and name.endswith("greedy") and given:
        raise InputError(
            f"--decode {name} has no settings; leave out {', '.join(map(_named, given))}, or --decode {name}."
        )
    for key, value in given.items():
        if value == "":
            raise InputError(f"{_named(key)} must be a file; got an empty name.")
    if given:
        from asr.build import rules_of

        rule_of = {
            "beam": rules_of("decode", "beam")["beam_size"],
            **rules_of("decode", "lm_rescoring"),
            **rules_of("decode/fusion", "shallow_fusion"),
        }
        for key, value in given.items():
            rule_of[key].check(_named(key), value)
    settings = {"name": name, "beam_size": beam, "fusion": fusion}
    return {key: value for key, value in settings.items() if value} | rescoring


def inference(options: argparse.Namespace) -> "Inference":
    """Collect what bounds memory, and how long recordings are cut."""
    from asr.data.batch_plan import BatchBounds
    from asr.recognition.chunks import ChunkBounds
    from asr.recognition.inference import INFERENCE, Inference
    from asr.recognition.long_form import at_silences

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
        raise InputError(f"--context must be at least 0, and less than half of --chunk; got {context} and {chunk}.")
    batch_seconds = options.batch_seconds or INFERENCE.batches.batch_seconds
    return Inference(
        BatchBounds(batch_seconds=batch_seconds, max_utterances=INFERENCE.batches.max_utterances),
        ChunkBounds(chunk, context),
        at_silences if options.segment == "silence" else None,
        nbest,
        options.num_workers,
    )


def progress_bar() -> "Progress":
    """Make a bar on stderr; none where no one would see it, or where it would get between lines on stdout."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    hidden = not sys.stderr.isatty() or sys.stdout.isatty()
    return Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False, disable=hidden)


@contextmanager
def audio_progress(description: str, utterances: "Iterable[Utterance]") -> "Iterator[Callable[[float], None]]":
    """Show a bar over the seconds of these utterances; yield what is told of each second that is done."""
    with progress_bar() as progress:
        task = progress.add_task(description, total=sum(utterance.duration for utterance in utterances))
        yield lambda seconds: progress.advance(task, seconds)


def check_language(language: str | None) -> None:
    """Check a code of ISO 639.

    Raises:
        InputError: it is not two or three lower-case letters.
    """
    if language is not None and not re.fullmatch("[a-z]{2,3}", language):
        raise InputError(f"--language must be two or three letters in lower case, such as en; got {language!r}.")


def complain(message: str) -> None:
    """Name a problem, which need not end the command, on one line."""
    print(f"error: {printable(message)}", file=sys.stderr)


def complain_of(name: str, reason: str) -> None:
    """Name a problem of a recording, and the recording, if the problem's own text does not."""
    said = reason.startswith(f"{name}: ") or f"(id {name!r})" in reason
    complain(reason if said else f"{name}: {reason}")


def run_command(command: Callable[[Sequence[str] | None], int]) -> None:
    """Run a command and end the process: an InputError or StoreError is one line and status 1, Ctrl-C is status 130."""
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
        complain(f"memory must suffice for a batch; lower --batch-seconds or --chunk. {reason}")
        status = 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = INTERRUPTED
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        status = 1
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        complain(f"{error.filename or 'the output'} must be written; {error.strerror}.")
        status = 1
    reader_has_gone()
    gc.freeze()  # Python would look through all of torch for garbage before it ends, for a quarter of a second
    sys.exit(status)
