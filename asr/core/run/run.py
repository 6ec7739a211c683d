"""A run: its folder, its settings, and the checkpoint from which it resumes."""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from asr.base.settings.read import as_mapping
from asr.core.checkpoint.saved import CHECKPOINTS, put_aside
from asr.core.data.position import Position, start_of_epoch
from asr.core.data.training_set import RunBounds
from asr.core.run import folder
from asr.core.run.events import EventsFile, Started
from asr.core.run.provenance import provenance
from asr.core.run.resume import Resume, RunRecord, changes, check_allowed, find_resume, run_settings
from asr.core.run.settings import TrainingSettings

S = TypeVar("S", bound=TrainingSettings)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run(Generic[S]):
    """A run in one of its processes, before its next step. `open_run` makes it.

    Args:
        settings: settings of the run.
        rank: rank of this process.
        world_size: number of processes.
        resume: the checkpoint to resume from; None in a new run.
        compared: values that must not change when the run is resumed; {} before `enter`.
        changed: whether the run is resumed with changed settings.
        extra: what a checkpoint contains in addition to the weights (`checkpoint_extra`); {} before `enter`.
    """

    settings: S
    rank: int
    world_size: int
    resume: Resume | None
    compared: dict[str, Any] = field(default_factory=dict)
    changed: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def dir(self) -> Path:
        """The run folder."""
        return Path(self.settings.run_dir)

    @property
    def is_first(self) -> bool:
        """Whether this is the first process; only it writes to the run folder."""
        return self.rank == 0

    @property
    def step(self) -> int:
        """Completed optimizer steps."""
        return self.resume.step if self.resume else 0

    @property
    def position(self) -> Position:
        """Position in the training data."""
        return self.resume.position.on(self.world_size) if self.resume else start_of_epoch(0, self.world_size)

    def begin(self) -> None:
        """Remove the files of an earlier run without a checkpoint, before the folder's fitted files are read."""
        if self.resume is None and self.is_first:
            folder.begin_anew(self.dir)

    def enter(self, manifests: Mapping[str, str], fitted: Mapping[str, bytes], extra: dict[str, Any]) -> "Run[S]":
        """Check that settings, data and fitted files allow the run to start or resume; write its config.

        Args:
            manifests: fingerprints of the data, by the name of the setting.
            fitted: files of fitted components, and other files that must not change, by name.
            extra: what a checkpoint contains in addition to the weights.
        """
        resolved = as_mapping(self.settings)
        compared = run_settings(resolved, manifests, fitted, self.world_size)
        changed = changes(self.resume.run.settings, compared) if self.resume else {}
        if self.is_first:
            check_allowed(changed, self.dir, self.settings.resume.allow)
            put_aside(self.resume.damaged if self.resume else {})
            folder.save_config(self.dir, resolved)
        return replace(self, compared=compared, changed=bool(changed), extra=extra)

    def record(self, total_steps: Callable[[int, RunBounds], int]) -> RunRecord:
        """Return the record of the run that each checkpoint contains; a resumed run keeps its id.

        Args:
            total_steps: computes the number of optimizer steps, given completed steps and bounds.
        """
        if self.resume and not self.changed:
            return RunRecord(self.compared, self.resume.run.total_steps, self.resume.run.id)
        run_id = self.resume.run.id if self.resume else secrets.token_hex(8)
        return RunRecord(self.compared, total_steps(self.step, self.settings.trainer.bounds), run_id)

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
        if self.is_first:
            folder.begin_log()
            origin = asdict(provenance())
            for key, line in origin.items():
                logger.info("%s: %s", key, line)
            sizes = dict(model), dict(train), dict(valid)
            EventsFile(self.dir).append(Started(self.step, net, *sizes, **origin, shared_texts=shared_texts))


def open_run(settings: S, rank: int, world_size: int) -> Run[S]:
    """Open the run folder, and find the checkpoint to resume from.

    Args:
        settings: settings of the run.
        rank: rank of this process.
        world_size: number of processes.
    """
    if rank == 0:
        folder.open_run_dir(Path(settings.run_dir))
    return Run(settings, rank, world_size, find_resume(Path(settings.run_dir, CHECKPOINTS)))
