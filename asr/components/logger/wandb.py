"""The logger that sends metrics to Weights & Biases."""

from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from asr.base.settings.rule import OptionalText, Text
from asr.errors import InputError, reason_of


class WandB(WandbLogger):
    """A run on wandb.ai or, with WANDB_MODE=offline, in the run folder; a resumed training run continues it.

    Args:
        run_id: id of the training run; it does not change when the training run is resumed.
        resolved: the config, stored with the run.
        project: name of the project to which the run belongs.
        entity: user or team that owns the run; None: the account's default.

    Raises:
        InputError: no account is logged in, or wandb.ai cannot be reached.
    """

    def __init__(
        self, run_dir: Path, run_id: str, resolved: dict[str, Any], *, project: Text, entity: OptionalText
    ) -> None:
        super().__init__(name=run_dir.name, save_dir=run_dir, project=project, entity=entity, id=run_id, resume="allow")
        from wandb.errors import Error  # type: ignore[import-not-found,unused-ignore]

        try:
            self.log_hyperparams(resolved)  # starts the run
        except Error as error:
            must = "logger=wandb needs a reachable account: run wandb login, or set WANDB_MODE=offline"
            raise InputError(f"{must}; {reason_of(error)}.") from None

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Finish the run, so that the next job of a --multirun starts another one."""
        super().finalize(status)
        self.experiment.finish(exit_code=0 if status == "success" else 1)
