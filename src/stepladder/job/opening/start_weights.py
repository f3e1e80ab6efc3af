"""The weights that a recipe's model starts from: its own folder's, if no others are named."""

from __future__ import annotations

from pathlib import Path

from stepladder.data import Source
from stepladder.data.conversations.conversation_rows import ConversationRows
from stepladder.data.conversations.preference_rows import PreferenceRows
from stepladder.errors import ModelError
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


def check_weights(recipe: Recipe, training: Source) -> list[str]:
    """Say that a run begins without the weights of its folder; refuse to tune a model like that."""
    home = model_folder(recipe)
    given = recipe.model.weights or start_weights(recipe) or recipe.run.resume
    if home is None or given:
        return []
    problem = f"'{home}' has no *.safetensors, and a run without weights starts from random values"
    if isinstance(training, ConversationRows | PreferenceRows):
        remedy = f"Copy its weights there, name them, or write --model.weights {RANDOM}."
        raise ModelError("model.weights", problem, remedy)
    return [f"model.weights: {problem}"]


def weights_text(recipe: Recipe) -> str:
    """The weights as `build` takes them: what is no folder's model keeps what was written."""
    if not is_pretrained_path(recipe.model.name):
        return recipe.model.weights
    return str(start_weights(recipe) or "")
