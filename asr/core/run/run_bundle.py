"""The bundle of a run, with its model card."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import indent

from asr.base.text.printable import printable
from asr.core.checkpoint.load import BUNDLE
from asr.core.checkpoint.saved import CHECKPOINTS, by_score, intact_checkpoints, kept_checkpoints, select
from asr.core.run.events import Bundled, EventsFile, Started, read_history
from asr.core.run.names import EVENTS
from asr.core.run.settings import TrainingSettings, command_of

logger = logging.getLogger(__name__)

_CARD = """# {name}

{what} trained by `python -m asr.{command}`.

| | |
|---|---|
{table}
{use}"""


def best_score(run_dir: Path) -> float | None:
    """Return the lowest score among the stored checkpoints; None: no checkpoint was validated."""
    best = by_score(kept_checkpoints(run_dir / CHECKPOINTS))
    return best[0].score if best else None


def write_run_bundle(
    settings: TrainingSettings,
    write: Callable[[Path, Sequence[Path], str], None],
    what: str,
    rows: Mapping[str, str],
    facts: Mapping[str, str],
    use: str = "",
    initial_card: str = "",
) -> Path:
    """Write a run's bundle and model card; `checkpoint.select` selects the checkpoints for the bundle's weights.

    Args:
        settings: settings of the run.
        write: writes a bundle, given its folder, the checkpoints and the card.
        what: kind of the model, for the card.
        rows: rows of the card's table before that of the weights.
        facts: rows after it.
        use: how the bundle is used, for the card.
        initial_card: card of the initial model, which may name its authors and its licence; it is quoted.
    """
    run_dir = Path(settings.run_dir)
    chosen = select(settings.checkpoint.select, intact_checkpoints(run_dir / CHECKPOINTS), settings.checkpoint.keep)
    weights = f"{settings.checkpoint.select} of the run: {', '.join(each.path.stem for each in chosen)}"
    rows = {**rows, "weights": weights, **facts, **_origin(read_history(run_dir / EVENTS).latest)}
    table = "".join(f"| {name} | {cell(text)} |\n" for name, text in rows.items() if text)
    command = command_of(settings.components)
    card = _CARD.format(name=run_dir.name, what=what, command=command, table=table, use=use)
    if initial_card:
        card += "\n## The initial model\n\n" + indent(initial_card.strip(), "> ", lambda line: True) + "\n"
    write(run_dir / BUNDLE, [each.path for each in chosen], card)
    logger.info("bundle written to %s", run_dir / BUNDLE)
    EventsFile(run_dir).append(Bundled())
    return run_dir / BUNDLE


def _origin(start: Started | None) -> dict[str, str]:
    """Return the code, the libraries and the machine of a run.

    Command, date and time are only in the log, the report and the events, so that a repeated command makes the same
    bundle byte for byte.
    """
    return {} if start is None else {"code": start.code, "libraries": start.libraries, "machine": start.machine}


def cell(text: str) -> str:
    """Escape a text for a Markdown table."""
    return printable(text).replace("|", r"\|")
