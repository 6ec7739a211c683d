"""The options --report and --report-audio, and the files that commands are asked to write."""

import argparse
import math
import os
from pathlib import Path

from asr.errors import InputError
from asr.files import write_whole_text

MEGABYTES = 20.0  # of recordings: an hour of speech, and a page that opens at once
MEGABYTE = 1_000_000


def add_report(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--report", metavar="FILE", type=Path, help="gets an HTML page with charts and recordings")
    parser.add_argument(
        "--report-audio",
        metavar="MB",
        type=float,
        help=f"of recordings in it, of the most telling utterances (default {MEGABYTES:g})",
    )


def audio_budget(options: argparse.Namespace) -> float:
    """Check the options before the work that comes first, and say how many bytes of recordings there may be.

    Raises:
        InputError: the report could not be written, or the budget is not a number of megabytes.
    """
    megabytes = MEGABYTES if options.report_audio is None else options.report_audio
    if not (math.isfinite(megabytes) and megabytes >= 0):
        raise InputError(f"--report-audio must be a number of megabytes, at least 0; got {megabytes}.")
    if options.report is None:
        if options.report_audio is not None:
            raise InputError("--report-audio must go with --report; add --report FILE.")
        return 0.0
    check_output("--report", options.report, "report.html", getattr(options, "output_dir", None))
    return megabytes * MEGABYTE


def check_output(option: str, path: Path, example: str, made_later: Path | None = None) -> None:
    """Check that a file can be written at a path, as far as that can be told without writing it.

    Args:
        option: that names the path, for errors.
        path: of the file.
        example: a file name such as the option is for.
        made_later: a folder that need not be there yet.

    Raises:
        InputError: it cannot.
    """
    if path.is_dir() or not path.name:
        raise InputError(f"{option} must be a file; {str(path)!r} is a folder. Give a name in it, such as {example}.")
    if path.exists() and not path.is_file():  # a device, which would be replaced by the file
        raise InputError(f"{option} must be a file; {str(path)!r} is none. Give another name, such as {example}.")
    folder = Path(os.path.realpath(path)).parent
    if made_later is not None and folder == Path(os.path.realpath(made_later)):
        return
    if not folder.is_dir():
        raise InputError(
            f"{option} must be in a folder that is there; there is no {str(path.parent)!r}. Make it first."
        )
    if not os.access(folder, os.W_OK):
        raise InputError(f"{option} must be in a folder that can be written to; {str(path.parent)!r} cannot.")


def write_output(option: str, path: Path, text: str) -> None:
    """Write the file, whole or not at all; where `path` is a link, the file that it leads to.

    Raises:
        InputError: it cannot be written there.
    """
    try:
        write_whole_text(Path(os.path.realpath(path)), text)
    except OSError as error:
        raise InputError(f"{option} must be a file that can be written; {path}: {error.strerror}.") from None
