"""The options --report and --report-audio."""

import argparse
import math
from collections.abc import Iterable
from pathlib import Path

from asr.base.system.files import check_output
from asr.errors import InputError

MEGABYTES = 20.0  # default limit of all recordings in a page, about half an hour of speech; larger pages open slowly
MEGABYTE = 1_000_000


def add_report(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--report", metavar="FILE", type=Path, help="write an HTML page with charts and recordings")
    parser.add_argument(
        "--report-audio",
        metavar="MB",
        type=float,
        help="maximum size of recordings and features in the page; recordings with most errors come first "
        f"(default {MEGABYTES:g})",
    )


def audio_budget(options: argparse.Namespace, inputs: Iterable[str | Path]) -> float:
    """Check the options before the work begins; return the maximum bytes of recordings in the report.

    Args:
        options: options of the command.
        inputs: the command's inputs and its other outputs.
    """
    megabytes = MEGABYTES if options.report_audio is None else options.report_audio
    if not (math.isfinite(megabytes) and megabytes >= 0):
        raise InputError(f"--report-audio must be a number of megabytes, at least 0; got {megabytes}.")
    if options.report is None:
        if options.report_audio is not None:
            raise InputError("--report-audio needs --report; add --report FILE.")
        return 0.0
    check_output("--report", options.report, "report.html", inputs)
    return megabytes * MEGABYTE
