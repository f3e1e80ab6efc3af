"""The weights that a recipe's model starts from: its own folder's, if no others are named."""

from __future__ import annotations

from pathlib import Path

from stepladder.model.huggingface.pretrained import is_pretrained_path
from stepladder.plan import Recipe

RANDOM = "random"  # as model.weights: start from random values although the folder has weights


def model_folder(recipe: Recipe) -> Path | None:
    """The folder of the recipe's model, if it is one."""
    path = Path(recipe.model.name).expanduser()
    return path if is_pretrained_path(recipe.model.name) and path.is_dir() else None


def start_weights(recipe: Recipe) -> Path | None:
    """The folder of the weights that a run of a folder's model starts from; None: random ones."""
    given, home = recipe.model.weights, model_folder(recipe)
    if given:
        return None if given == RANDOM else Path(given).expanduser()
    return home if home and any(home.glob("*.safetensors")) else None


def weights_text(recipe: Recipe) -> str:
    """The weights as `build` takes them: what is no folder's model keeps what was written."""
    if not is_pretrained_path(recipe.model.name):
        return recipe.model.weights
    return str(start_weights(recipe) or "")
