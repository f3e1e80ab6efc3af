"""Weights & Biases: one of its runs for each start, with wandb's own settings.

Nothing is asked on the terminal: without a login the run is refused before the first step.
`WANDB_MODE=offline` stores everything in the run folder's `wandb`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepladder.errors import PlanError

from .scalars import scalars
from .targets import FIELD, import_tracker


class Wandb:
    name = "wandb"

    def __init__(self, folder: Path) -> None:
        wandb = import_tracker("wandb")
        settings = wandb.Settings(silent=True, console="off")
        try:
            if settings.mode not in ("offline", "disabled") and not wandb.api.api_key:
                raise ValueError("nobody is logged in")
            self._run = wandb.init(
                project="stepladder", name=folder.resolve().name, dir=str(folder), settings=settings
            )
            # wandb's own step counter would drop the steps that a resumed run repeats.
            self._run.define_metric("*", step_metric="step")
        except Exception as refused:
            raise PlanError(
                FIELD,
                f"wandb does not open ({str(refused).strip().splitlines()[0]})",
                "Run 'wandb login', or set WANDB_MODE=offline.",
            ) from refused

    def write(self, kind: str, entry: dict[str, Any]) -> None:
        found = scalars(kind, entry)
        if found:
            self._run.log({"step": entry.get("step"), **found})
        elif kind == "start":
            self._run.config.update(dict(entry), allow_val_change=True)
        elif kind == "summary":
            self._run.summary.update(
                {key: value for key, value in entry.items() if key != "sample"}
            )

    def close(self) -> None:
        self._run.finish(quiet=True)
