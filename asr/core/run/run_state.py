"""The state of a run when a process starts it: new, or resumed from a checkpoint."""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asr.base.settings.read import as_mapping
from asr.core.checkpoint.saved import put_aside
from asr.core.data.position import Position, start_of_epoch
from asr.core.data.training_set import RunBounds
from asr.core.run import folder
from asr.core.run.events import EventsFile, Started
from asr.core.run.provenance import provenance
from asr.core.run.resume import Resume, Run, check_allowed
from asr.core.run.settings import TrainingSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunState:
    """State of a run before its next step.

    Args:
        run_dir: the run folder.
        writes: whether this is the first process; only it writes to the run folder.
        position: position in the training data.
        settings: values that must not change when the run is resumed.
        resume: the checkpoint to resume from; None in a new run.
        changed: whether the run is resumed with changed settings.
    """

    run_dir: Path
    writes: bool
    position: Position
    settings: dict[str, Any]
    resume: Resume | None
    changed: bool

    @property
    def step(self) -> int:
        """Completed optimizer steps."""
        return self.resume.step if self.resume else 0

    def run(self, total_steps: Callable[[Position, int, RunBounds], int], bounds: RunBounds) -> Run:
        """Return the record of the run that each checkpoint contains; a resumed run keeps its id.

        Args:
            total_steps: computes the number of optimizer steps, given position, completed steps and bounds.
            bounds: limits at which the run ends.
        """
        if self.resume and not self.changed:
            return Run(self.settings, self.resume.run.total_steps, self.resume.run.id)
        run_id = self.resume.run.id if self.resume else secrets.token_hex(8)
        return Run(self.settings, total_steps(self.position, self.step, bounds), run_id)

    def record_start(
        self,
        net: str,
        model: Mapping[str, float],
        train: Mapping[str, float],
        valid: Mapping[str, float],
        shared_texts: int = 0,
    ) -> None:
        """Begin the run's log with command, code, libraries and machine, and write the start event.

        Args:
            net, model, train, valid, shared_texts: fields of the event (`Started`).
        """
        if self.writes:
            folder.begin_log()
            origin = asdict(provenance())
            for key, line in origin.items():
                logger.info("%s: %s", key, line)
            sizes = dict(model), dict(train), dict(valid)
            EventsFile(self.run_dir).append(Started(self.step, net, *sizes, **origin, shared_texts=shared_texts))


@dataclass(frozen=True)
class PreparedRun:
    """Everything that a run prepares before it creates the model.

    Args:
        settings: settings of the run.
        state: state of the run.
        extra: data that a checkpoint contains in addition to the weights.
    """

    settings: TrainingSettings
    state: RunState
    extra: dict[str, Any]


def enter_run(
    settings: TrainingSettings,
    compared: dict[str, Any],
    resume: Resume | None,
    changed: Mapping[str, str],
    rank: int,
    world_size: int,
) -> RunState:
    """Check that the settings allow the run to start or resume, and write its config to the run folder.

    Args:
        settings: settings of the run.
        compared: values that must not change when the run is resumed.
        resume: the checkpoint to resume from; None in a new run.
        changed: differences between `compared` and the checkpoint's values.
        rank: rank of this process.
        world_size: number of processes.
    """
    run_dir, first = Path(settings.run_dir), rank == 0
    if first:
        check_allowed(changed, run_dir, settings.resume.allow)
        put_aside(resume.damaged if resume else {})
        folder.save_config(run_dir, as_mapping(settings))
    position = resume.position.on(world_size) if resume else start_of_epoch(0, world_size)
    return RunState(run_dir, writes=first, position=position, settings=compared, resume=resume, changed=bool(changed))
