"""The logger that sends metrics to Trackio."""

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from asr.base.settings.rule import OptionalText, Text
from asr.errors import InputError, reason_of


class Trackio(Logger):
    """A run in Trackio's database on this machine or in a Space of Hugging Face; a resumed training run continues it.

    Trackio keeps the metrics of the steps that a resumed run repeats beside the new ones.

    Args:
        run_id: id of the training run; it does not change when the training run is resumed. Trackio finds a run by its
            name alone, so the id is part of the name.
        resolved: the config, stored with the run.
        project: name of the project to which the run belongs.
        space: the Space, as OWNER/NAME; None: TRACKIO_SPACE_ID or, if unset, the database in TRACKIO_DIR.

    Raises:
        InputError: Trackio refuses the project or the Space.
    """

    def __init__(
        self, run_dir: Path, run_id: str, resolved: dict[str, Any], *, project: Text, space: OptionalText
    ) -> None:
        super().__init__()
        self._project = project
        self._run_id = run_id
        self._start(f"{run_dir.name}-{run_id}", resolved, space)

    @property
    def name(self) -> str:
        """Name of the project."""
        return self._project

    @property
    def version(self) -> str:
        """Id of the training run."""
        return self._run_id

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Send the metrics of a step; Trackio writes them in a thread of its own."""
        self._run.log(dict(metrics), step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the run was started with the hyperparameters."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write what is left, and finish the run, so that the next job of a --multirun starts another one."""
        import trackio

        with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(RuntimeError):  # RuntimeError: it is finished
            trackio.finish()

    @rank_zero_only
    def _start(self, run_name: str, resolved: dict[str, Any], space: str | None) -> None:
        import trackio

        try:
            with contextlib.redirect_stdout(sys.stderr):
                self._run = trackio.init(self._project, run_name, space_id=space, config=resolved, resume="allow")
        except Exception as error:  # Trackio's own errors have no common class
            must = "logger=trackio must be able to start a run in its project and its Space"
            given = f"got project={self._project!r}, space={space!r}: {reason_of(error)}"
            raise InputError(f"{must}; {given}. Correct the settings, or log in with hf auth login.") from None
