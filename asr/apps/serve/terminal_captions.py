"""Live captions of a file or of standard input."""

import argparse
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from asr.base.settings.rule import SAMPLE_RATES, STREAM_SECONDS
from asr.base.text.printable import printable
from asr.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from asr.core.recognition.captions import Captions
    from asr.core.recognition.recognizer import Recognizer

STDIN = "-"
RATE = 16_000  # Hz
SAMPLE_BYTES = 2
LINE = 100  # characters after which a line ends even without a pause
ERASE, FAINT, PLAIN = "\r\x1b[K", "\x1b[2m", "\x1b[0m"


def add_captions(parser: argparse.ArgumentParser) -> None:
    """Add the options of live captions."""
    stream = parser.add_argument_group("live captions")
    stream.add_argument("--stream", action="store_true", help="caption one file, or standard input (-), line by line")
    stream.add_argument("--chunk-seconds", type=float, metavar="S", help="length of a chunk (default: the model's)")
    stream.add_argument(
        "--left-seconds", type=float, metavar="S", help="left context of a chunk (default: the model's)"
    )
    stream.add_argument(
        "--right-seconds",
        type=float,
        metavar="S",
        help="right context of a chunk, which adds delay (default: the model's)",
    )
    stream.add_argument(
        "--rate", type=int, metavar="HZ", help=f"sample rate of standard input: raw mono 16-bit PCM (default {RATE})"
    )


def check_captions(options: argparse.Namespace) -> None:
    """Check the combination of the options of live captions."""
    given = [name for name in (*STREAM_SECONDS, "rate") if getattr(options, name) is not None]
    if not options.stream:
        if given or STDIN in options.paths:
            option = "--" + given[0].replace("_", "-") if given else "- (standard input)"
            raise InputError(f"{option} needs --stream; got none.")
        return
    if len(options.paths) != 1:
        raise InputError(f"--stream needs one recording, or - for standard input; got {len(options.paths)} paths.")
    if options.output_dir or options.format != ["txt"] or options.nbest != 1:
        raise InputError("--stream writes lines of text to standard output; leave out --format, --output-dir, --nbest.")
    if options.rate is not None:
        if options.paths != [STDIN]:
            raise InputError(f"--rate needs - (standard input); the file {options.paths[0]} has its own rate.")
        SAMPLE_RATES.check("--rate", options.rate)
    for name, rule in STREAM_SECONDS.items():
        if getattr(options, name) is not None:
            rule.check("--" + name.replace("_", "-"), getattr(options, name))


def caption(recognizer: "Recognizer", options: argparse.Namespace) -> int:
    """Print final words in lines as soon as they are recognised; on a terminal, also print the provisional words."""
    from asr.base.audio.load import stream_waveform
    from asr.base.audio.resampling import resampled
    from asr.core.recognition.streaming import Stream

    seconds = {name: getattr(options, name) for name in STREAM_SECONDS}
    stream = Stream(recognizer, **seconds, language=options.language)
    [path] = options.paths
    if path == STDIN:
        samples = raw_samples(sys.stdin.buffer)
        blocks = resampled(samples, options.rate or RATE, stream.sample_rate)
    else:
        blocks = stream_waveform(path, stream.sample_rate, block_seconds=0.1)
    if stream.note:
        print(printable(f"stream: {stream.note}"), file=sys.stderr)
    lines = Lines()
    has_audio = False
    for block in blocks:
        has_audio = has_audio or len(block) > 0
        lines.show(stream.feed(block))
    if not has_audio:
        raise InputError(f"{'standard input' if path == STDIN else path} must contain audio; got none.")
    lines.show(stream.finish())
    return 0


class Lines:
    """Lines of captions on standard output."""

    def __init__(self) -> None:
        self._line: list[str] = []  # final words of the unfinished line
        self._is_terminal = sys.stdout.isatty()

    def show(self, captions: "Captions") -> None:
        """Print the new final words; on a terminal, also print the provisional words."""
        for word in captions.final:
            self._line.append(printable(word.text))
            if sum(map(len, self._line)) + len(self._line) > LINE:
                self._end()
        if captions.is_end:
            self._end()
        if self._is_terminal:
            self._refresh(" ".join(printable(word.text) for word in captions.partial))

    def _end(self) -> None:
        if self._line:
            print((ERASE if self._is_terminal else "") + " ".join(self._line), flush=True)
        self._line = []

    def _refresh(self, partial: str) -> None:
        """Print the last line again; if it is wider than the terminal, print only its end."""
        width = os.get_terminal_size(sys.stdout.fileno()).columns - 1
        final = " ".join(self._line)
        final += " " if final and partial else ""
        partial = partial[-width:]
        final = final[max(0, len(final) + len(partial) - width) :]
        print(f"{ERASE}{final}{FAINT}{partial}{PLAIN}", end="", flush=True)


def raw_samples(file: BinaryIO) -> "Iterator[Tensor]":
    """Yield the samples of raw 16-bit PCM as they arrive, (S,) in [-1, 1]."""
    import torch

    must = "standard input must be raw mono 16-bit PCM, such as from arecord -t raw -f S16_LE -r 16000"
    if file.isatty():
        raise InputError(f"{must}; got a terminal.")
    rest, is_first = b"", True
    while read := file.read1(2**16):  # type: ignore[attr-defined]  # available bytes, without waiting for more
        rest += read
        if is_first and len(rest) < 4:
            continue
        if is_first and rest[:4] in (b"RIFF", b"fLaC", b"OggS", b"FORM"):
            raise InputError(f"{must}; got a file that begins with {rest[:4].decode()}. Give its path instead of -.")
        is_first = False
        even = len(rest) // SAMPLE_BYTES * SAMPLE_BYTES
        yield torch.frombuffer(bytearray(rest[:even]), dtype=torch.int16).float() / 2**15
        rest = rest[even:]
