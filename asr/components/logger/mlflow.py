"""The logger that sends metrics to MLflow."""

import os
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import MLFlowLogger

from asr.base.settings.rule import OptionalText, Text

TAG = "asr_run"  # tag by which a resumed training run finds its run in MLflow


class MLflow(MLFlowLogger):
    """A run in MLflow; a resumed training run continues it.

    Args:
        run_id: id of the training run; it does not change when the training run is resumed.
        resolved: the config, stored as the run's parameters.
        experiment: name of the experiment to which the run belongs.
        tracking_uri: URI of the server; None: MLFLOW_TRACKING_URI or, if unset, the file mlflow.db in the run folder.
    """

    def __init__(
        self, run_dir: Path, run_id: str, resolved: dict[str, Any], *, experiment: Text, tracking_uri: OptionalText
    ) -> None:
        from mlflow.tracking import MlflowClient

        uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(run_dir / 'mlflow.db').resolve()}"
        client = MlflowClient(uri)
        known = client.get_experiment_by_name(experiment)
        runs = client.search_runs([known.experiment_id], f"tags.{TAG} = '{run_id}'") if known else []
        super().__init__(
            experiment_name=experiment,
            run_name=run_dir.name,
            tracking_uri=uri,
            tags={TAG: run_id},
            run_id=runs[0].info.run_id if runs else None,
        )
        if not runs:
            self.log_hyperparams(resolved)
