"""Metrics to MLflow."""

import os
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import MLFlowLogger

from asr.settings.rule import OptionalText, Text

TAG = "asr_run"  # by which a run that is resumed is found again


class MLflow(MLFlowLogger):
    """A run of MLflow, resumed with the training.

    Args:
        run_dir: the run folder.
        run_id: of the training, the same when it is resumed.
        resolved: the config of the run, which is stored there.
        experiment: that the run is in.
        tracking_uri: of the server; None: as MLFLOW_TRACKING_URI says, or the file mlflow.db in the run folder.
    """

    def __init__(
        self, run_dir: Path, run_id: str, resolved: dict[str, Any], *, experiment: Text, tracking_uri: OptionalText
    ) -> None:
        from mlflow.tracking import MlflowClient

        uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(run_dir / 'mlflow.db').resolve()}"
        client = MlflowClient(uri)
        known = client.get_experiment_by_name(experiment)
        found = client.search_runs([known.experiment_id], f"tags.{TAG} = '{run_id}'") if known else []
        super().__init__(
            experiment_name=experiment,
            run_name=run_dir.name,
            tracking_uri=uri,
            tags={TAG: run_id},
            run_id=found[0].info.run_id if found else None,
        )
        if not found:
            self.log_hyperparams(resolved)
