"""Metrics to Weights & Biases."""

from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from asr.errors import InputError, one_line
from asr.settings.rule import OptionalText, Text


class WandB(WandbLogger):
    """A run on wandb.ai, or in the folder wandb of the run folder where WANDB_MODE=offline; resumed with the training.

    Args:
        run_dir: the run folder.
        run_id: of the training, the same when it is resumed.
        resolved: the config of the run, which is stored there.
        project: that the run is in.
        entity: user or team; None: the default of the account.

    Raises:
        InputError: nobody is logged in, or wandb.ai cannot be reached.
    """

    def __init__(
        self, run_dir: Path, run_id: str, resolved: dict[str, Any], *, project: Text, entity: OptionalText
    ) -> None:
        super().__init__(name=run_dir.name, save_dir=run_dir, project=project, entity=entity, id=run_id, resume="allow")
        from wandb.errors import Error  # type: ignore[import-not-found,unused-ignore]

        try:
            self.log_hyperparams(resolved)  # begins the run
        except Error as error:
            must = "logger=wandb must reach an account: run wandb login, or set WANDB_MODE=offline"
            raise InputError(f"{must}; {one_line(error)}") from None

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Lightning's hook; the next job of a --multirun is another run."""
        super().finalize(status)
        self.experiment.finish(exit_code=0 if status == "success" else 1)
