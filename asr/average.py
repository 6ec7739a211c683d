"""python -m asr.average RUN_DIR|CHECKPOINT... --output-dir DIR: average checkpoints and write a bundle."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from asr.base.system.files import check_apart, real
from asr.base.text.printable import printable
from asr.core.cli.command import run_command
from asr.core.cli.parser import CommandParser
from asr.errors import InputError

NUM_BEST = 5  # default without --best and --last
SHARE = 0.3  # default share of --start


class Start(NamedTuple):
    """The model of --start: its name, its path, and its share in each weight, greater than 0 and less than 1."""

    source: str
    path: Path
    share: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Average checkpoints; print their names and the bundle's path."""
    parser = CommandParser(
        prog="python -m asr.average",
        description="Write a bundle whose weights are the average of several checkpoints of a run.",
    )
    parser.add_plugins()
    parser.add_argument("sources", metavar="RUN_DIR|CHECKPOINT", nargs="+", help="a run folder, or .ckpt files")
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        type=Path,
        required=True,
        help="folder of the bundle; an older bundle is replaced",
    )
    choice = parser.add_mutually_exclusive_group()
    best = f"average the N checkpoints of a run with the lowest WER, except much worse ones (default {NUM_BEST})"
    choice.add_argument("--best", type=int, metavar="N", help=best)
    choice.add_argument("--last", type=int, metavar="N", help="average the N newest validated checkpoints of a run")
    parser.add_argument(
        "--start", metavar="MODEL", help="initial model of the run (init.from), included to reduce forgetting"
    )
    parser.add_argument(
        "--share",
        type=float,
        metavar="S",
        help=f"share of the model of --start in the weights, greater than 0 and less than 1 (default {SHARE})",
    )
    options = parser.parse_args(arguments)
    if options.share is not None and options.start is None:
        raise InputError(f"--share needs --start, the model that it applies to; got only --share {options.share:g}.")
    share = SHARE if options.share is None else options.share
    if not 0 < share < 1:
        raise InputError(f"--share must be greater than 0 and less than 1; got {share:g}.")
    checkpoints = find_checkpoints([Path(source) for source in options.sources], options.best, options.last)
    check_one_run(checkpoints)
    if (wanted := options.best or options.last) and len(checkpoints) < wanted:
        print(
            f"{wanted} checkpoints were requested, but the run stored only {len(checkpoints)} (checkpoint.keep)",
            file=sys.stderr,
        )
    from asr.core.checkpoint.load import read_start, stored_at, write_bundle
    from asr.core.hub.download import path_of

    start = None if options.start is None else Start(options.start, path_of(options.start), share)
    check_apart("--output-dir", options.output_dir, [*checkpoints, *([stored_at(start.path)] if start else [])])
    card = model_card(options.output_dir, checkpoints, start)
    initial = None if start is None else read_start(start.path, checkpoints[0])
    write_bundle(options.output_dir, checkpoints, card, start=initial, share=share)
    names = ", ".join(path.stem for path in checkpoints)
    print(f"{options.output_dir}: the mean of {_count(checkpoints)}: {names}{_and_start(start)}")
    return 0


def find_checkpoints(sources: Sequence[Path], best: int | None, last: int | None) -> list[Path]:
    """Find the checkpoints of the command line: those of a run folder that `--best` or `--last` chooses, or files."""
    for option, number in (("--best", best), ("--last", last)):
        if number is not None and number < 1:
            raise InputError(f"{option} must be positive; got {number}.")
    if missing := [str(source) for source in sources if not source.exists()]:
        raise InputError(f"{missing[0]}: no such checkpoint or run folder.")
    folders = [source for source in sources if source.is_dir()]
    if folders:
        if len(sources) > 1:
            given = ", ".join(map(str, sources))
            raise InputError(f"sources must be one run folder, or checkpoint files; got {given}.")
        return _choose(folders[0], best, last)
    if best is not None or last is not None:
        raise InputError("--best and --last need a run folder; got checkpoint files, which are all averaged.")
    if len({real(source) for source in sources}) < len(sources):
        raise InputError(f"each checkpoint must be given once; got {', '.join(map(str, sources))}.")
    return list(sources)


def _choose(run_dir: Path, best: int | None, last: int | None) -> list[Path]:
    from asr.core.checkpoint.saved import CHECKPOINTS, kept_checkpoints, select

    folder = run_dir / CHECKPOINTS
    validated = [checkpoint for checkpoint in kept_checkpoints(folder) if checkpoint.score is not None]
    if not validated:
        must = f"{run_dir}: a run folder must have validated checkpoints, {CHECKPOINTS}/step=…-….ckpt"
        raise InputError(f"{must}; it has none. Give the paths of checkpoints.")
    if last is not None:
        return [checkpoint.path for checkpoint in validated[-last:]]
    return [checkpoint.path for checkpoint in select("average_best", validated, best or NUM_BEST)]


def check_one_run(checkpoints: Sequence[Path]) -> None:
    """Check that checkpoints are intact and from one run, because the mean of independent weights is useless."""
    from asr.core.checkpoint.saved import damage
    from asr.core.run.resume import differences

    for path in checkpoints:
        if not path.is_file():
            raise InputError(f"{path}: no such checkpoint.")
        if (reason := damage(path)) is not None:
            raise InputError(f"{path}: a checkpoint must be intact; {reason}.")
    first, *others = checkpoints
    expected = _origin(first)
    for path in others:
        if changes := differences(expected, _origin(path)):
            must = f"{path}: checkpoints to average must belong to one run"
            raise InputError(f"{must}; {first} belongs to another run. Different: {'; '.join(changes.values())}.")


def _origin(checkpoint: Path) -> dict[str, Any]:
    """Return values that are equal in all checkpoints of a run: config, hashes of fitted files, and the run's id."""
    from asr.core.checkpoint.load import checkpoint_bundle, read_checkpoint
    from asr.core.run.resume import RUN_KEY

    bundle, run = checkpoint_bundle(checkpoint), read_checkpoint(checkpoint).get(RUN_KEY)
    learnt = {name: hashlib.sha256(content).hexdigest()[:16] for name, content in bundle.files.items()}
    return bundle.config | {"learnt files": learnt, "run": run.get("id") if isinstance(run, dict) else None}


def model_card(output_dir: Path, checkpoints: Sequence[Path], start: Start | None = None) -> str:
    """Write the model card, which names the averaged checkpoints and the initial model."""
    from asr.core.checkpoint.bundle import is_encoder
    from asr.core.checkpoint.load import checkpoint_bundle

    lines = "\n".join(f"* {path.stem}" for path in checkpoints)
    counted = f"{_count(checkpoints)}{_and_start(start)}"
    what, use = _ENCODER if is_encoder(checkpoint_bundle(checkpoints[0]).config) else _RECOGNISER
    return _CARD.format(name=real(output_dir).name, what=what, count=counted, lines=lines, use=use)


def _and_start(start: Start | None) -> str:
    return "" if start is None else f", with a share of {start.share:g} of {printable(start.source)}"


def _count(checkpoints: Sequence[Path]) -> str:
    return f"{len(checkpoints)} checkpoint{'s' if len(checkpoints) > 1 else ''}"


_RECOGNISER = (
    "A speech recogniser",
    """Its word error rate was not measured; `python -m asr.evaluate FOLDER MANIFEST...` measures it. Transcribe with
`python -m asr.transcribe FOLDER AUDIO...`, where FOLDER is this folder.""",
)
_ENCODER = (
    "An encoder without a head,",
    "Train a recogniser from it with `python -m asr.train init.from=FOLDER`, where FOLDER is this folder.",
)
_CARD = """# {name}

{what} trained by `python -m asr.train`. Its weights are the mean of the weights of {count}, computed by
`python -m asr.average`:

{lines}

{use}
"""


if __name__ == "__main__":
    run_command(main)
