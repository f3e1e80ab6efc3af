"""MLflow: a run in the experiment `stepladder`, on the server that MLflow's settings name."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from stepladder.errors import PlanError

from .scalars import scalars
from .targets import FIELD, import_tracker

EXPERIMENT = "stepladder"
LONGEST = 500  # characters of a parameter, MLflow's limit


class Mlflow:
    name = "mlflow"

    def __init__(self, folder: Path) -> None:
        mlflow = import_tracker("mlflow")
        self._metric = import_tracker("mlflow.entities").Metric
        try:
            self._client = mlflow.MlflowClient()
            known = self._client.get_experiment_by_name(EXPERIMENT)
            experiment = (
                known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
            )
            name = folder.resolve().name
            self._run = self._client.create_run(experiment, run_name=name).info.run_id
        except Exception as refused:
            raise PlanError(
                FIELD,
                f"mlflow does not open ({(str(refused).strip() or 'no reason').splitlines()[0]})",
                "Set MLFLOW_TRACKING_URI to a server that answers, or to sqlite:///FILE.",
            ) from refused

    def write(self, kind: str, entry: dict[str, Any]) -> None:
        now, step = int(time.time() * 1000), entry.get("step")
        found = scalars(kind, entry)
        if found:
            metrics = [self._metric(name, value, now, step) for name, value in found.items()]
            self._client.log_batch(self._run, metrics)
        elif kind == "start":
            for name in ("plan", "because"):
                self._client.set_tag(self._run, name, str(entry.get(name) or "")[:LONGEST])

    def close(self) -> None:
        self._client.set_terminated(self._run)
