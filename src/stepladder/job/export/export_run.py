"""What a recipe asks to be written at the end of a run, for programs other than this one."""

from __future__ import annotations

from pathlib import Path

from stepladder.errors import PlanError, RecordError
from stepladder.job.opening.start_weights import model_folder, start_weights
from stepladder.plan import Recipe

from .export_checkpoint import copy_tokenizer, export_checkpoint, weights_dtype


def check_exports(recipe: Recipe) -> None:
    """Refuse, before the first step, an export that could not be written after the last."""
    for key in ("export", "export_adapter"):
        folder = getattr(recipe.run, key)
        if folder and Path(folder).expanduser().exists():
            raise RecordError(f"run.{key}", f"{folder} exists", "Name a new place.")
    if recipe.run.export_adapter and not recipe.model.lora:
        problem = "only adapters are written so, and model.lora adds none"
        raise PlanError("run.export_adapter", problem, "Use run.export, or set model.lora.")


def export_run(recipe: Recipe, run: Path) -> list[Path]:
    """Write the folders that the recipe names; a model has the type of the weights at its start."""
    written = []
    if recipe.run.export:
        home, weights = model_folder(recipe), start_weights(recipe)
        written.append(Path(recipe.run.export).expanduser())
        export_checkpoint(run, written[-1], dtype=weights_dtype(weights) if weights else None)
        if home:
            copy_tokenizer(home, written[-1])
    if recipe.run.export_adapter:
        written.append(Path(recipe.run.export_adapter).expanduser())
        export_checkpoint(run, written[-1], to="adapters")
    return written
