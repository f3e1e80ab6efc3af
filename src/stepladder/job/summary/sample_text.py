"""Text sampled from a trained byte-level model."""

from __future__ import annotations

from stepladder.job.opening.open_recipe import BYTES
from stepladder.plan import Recipe
from stepladder.train import Run
from stepladder.train.sample_bytes import sample_bytes

PROMPT = b"def "


def sample_text(run: Run, recipe: Recipe) -> str:
    """What the model makes of the prompt; nothing where it was not asked or cannot."""
    shape = getattr(run.module, "shape", None)
    # A stage of a pipeline is no whole model, and ranks of a context read parts of a row.
    whole = run.plan.layout.pipeline == run.plan.layout.context == 1
    if not recipe.train.sample or not whole or getattr(shape, "vocab", None) != BYTES:
        return ""
    drawn = sample_bytes(
        run.module, PROMPT, length=recipe.train.sample, window=recipe.model.sequence
    )
    return drawn.decode(errors="replace")
