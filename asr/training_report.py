"""python -m asr.training_report RUN_DIR: write the report of a finished or unfinished run."""

from collections.abc import Sequence
from pathlib import Path

from asr.apps.report.training import read_record, training_page
from asr.base.system.files import check_output, message_stream, write_output
from asr.core.cli.command import run_command
from asr.core.cli.parser import CommandParser
from asr.core.run.names import COMPARISON, CONFIG, EVENTS, EXAMPLES, METRICS, REPORT, RESULTS
from asr.errors import InputError

READ = (CONFIG, METRICS, EXAMPLES, RESULTS, COMPARISON, EVENTS)  # files of a run folder that the report shows


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report of a finished or unfinished run."""
    parser = CommandParser(
        prog="python -m asr.training_report", description="Write the report of a training run, finished or not."
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="run folder of asr.train")
    parser.add_argument("--output", metavar="FILE", type=Path, help=f"path of the report (default RUN_DIR/{REPORT})")
    options = parser.parse_args(arguments)
    if not (options.run_dir / METRICS).is_file() and not (options.run_dir / CONFIG).is_file():
        must = f"RUN_DIR must be a run folder, with {CONFIG} and {METRICS}"
        raise InputError(f"{must}; got {str(options.run_dir)!r}. Give the run_dir of asr.train.")
    path = options.output or options.run_dir / REPORT
    check_output("--output", path, REPORT, inputs=[options.run_dir / name for name in READ])
    try:
        record = read_record(options.run_dir)
    except OSError as error:
        raise InputError(f"RUN_DIR must have readable files; got: {error}.") from None
    write_output("--output", path, training_page(record))
    print(path, file=message_stream(path))
    return 0


if __name__ == "__main__":
    run_command(main)
