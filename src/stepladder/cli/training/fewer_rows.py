"""Going on with fewer rows a pass, after memory ran out on one rank of several.

See [Note: memory that ran out on one rank]. The ranks end; the rows a pass they agreed on are left
in the run's folder, where they find them when they are started again. The global batch stays, so
the mathematics does: only the number of passes it takes grows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stepladder.errors import RankOutOfMemory, RecordError
from stepladder.plan import Plan, Recipe

NOTE = "micro"  # in the run's folder: the rows a pass to start again with


def leave_note(folder: Path, short: RankOutOfMemory) -> None:
    """Have the next start take fewer rows a pass; nothing is left where one is too many."""
    if short.micro:
        half = folder / f".{NOTE}"
        half.write_text(f"{short.micro}\n")
        half.rename(folder / NOTE)


def with_less(plan: Plan | None, recipe: Recipe) -> tuple[Plan | None, list[str]]:
    """The plan with the rows a pass that were left in the run's folder, and what to say of it."""
    note = Path(recipe.run.folder, NOTE) if recipe.run.folder else None
    if note is None or not note.exists():
        return plan, []
    text = note.read_text().strip()
    if not (text.isascii() and text.isdigit() and int(text)):
        raise RecordError("micro", f"{note} holds '{text}', no number of rows", "Remove it.")
    micro = int(text)
    known = plan or Plan.from_toml((note.parent / "plan.toml").read_text())  # as it was chosen
    if known.batch.micro is not None and known.batch.micro <= micro:
        return plan, []
    said = f"going on with {micro} rows a pass: memory ran out on one rank with more"
    return replace(known, batch=replace(known.batch, micro=micro, passes=None)), [said]
