"""A smaller micro-batch for the next start, after one rank of several ran out of memory.

See [Note: memory that ran out on one rank]. The ranks end; the micro-batch they agreed on is left
in the run's folder, where they find it when they are started again. The global batch stays, so the
mathematics does: only the number of micro-batches grows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stepladder.errors import RankOutOfMemory, RecordError
from stepladder.plan import Plan, Recipe

FILE = "micro"  # in the run's folder: the micro-batch to start again with


def save_reduced_micro(folder: Path, error: RankOutOfMemory) -> None:
    """Have the next start use a smaller micro-batch; nothing is saved where one row is too many."""
    if error.micro:
        half = folder / f".{FILE}"
        half.write_text(f"{error.micro}\n")
        half.rename(folder / FILE)


def apply_reduced_micro(plan: Plan | None, recipe: Recipe) -> tuple[Plan | None, list[str]]:
    """The plan with the micro-batch saved in the run's folder, and a sentence where it changed."""
    path = Path(recipe.run.folder, FILE) if recipe.run.folder else None
    if path is None or not path.exists():
        return plan, []
    text = path.read_text().strip()
    if not (text.isascii() and text.isdigit() and int(text)):
        raise RecordError("micro", f"{path} holds '{text}', no number of rows", "Remove it.")
    micro = int(text)
    known = plan or Plan.from_toml((path.parent / "plan.toml").read_text())  # as it was chosen
    if known.batch.micro is not None and known.batch.micro <= micro:
        return plan, []
    event = f"going on with {micro} rows per micro-batch: one rank ran out of memory with more"
    return replace(known, batch=replace(known.batch, micro=micro, micro_batches=None)), [event]
