"""A run's folder: where it is, what it holds already, what is written there first."""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict
from pathlib import Path

from stepladder.errors import PlanError, RecordError
from stepladder.plan import Recipe, read_recipe
from stepladder.record import read_journal
from stepladder.record.journal import JOURNAL_FILE

NO_SAMPLE_CHANGES = ("workers", "faults", "longest")  # data settings that change no sample


def choose_folder(recipe: Recipe, *, elastic: bool = False) -> Path:
    """The run's folder; one that holds a run is refused unless that run is to be resumed."""
    folder = Path(recipe.run.folder) if recipe.run.folder else unused_folder()
    if (folder / "latest").exists() and not (recipe.run.resume or elastic):
        raise RecordError(
            "run.folder",
            f"{folder} holds a run already",
            "Add --run.resume true to go on with it, or name another folder.",
        )
    return folder


def was_begun(folder: Path) -> bool:
    """Whether a run was started in the folder, which may have no checkpoint yet."""
    return (folder / JOURNAL_FILE).exists()


def unused_folder() -> Path:
    """A folder named after the time; runs that start within one second get numbers as well."""
    named = time.strftime("runs/%Y-%m-%d-%H%M%S")
    numbered = (Path(f"{named}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([Path(named)], numbered) if not path.exists())


def describe_restart(folder: Path, step: int, ranks: int) -> list[str]:
    """One sentence where the run was started before: how often, on how many ranks, from where."""
    starts = list(read_journal(folder, kind="start")) if was_begun(folder) else []
    if not starts:
        return []
    before = starts[-1].get("ranks", ranks)
    whose = f"{ranks} rank{'s' * (ranks > 1)}"
    changed = f"{whose}, {before} before" if before != ranks else whose
    return [f"start {len(starts) + 1} of this run, on {changed}: going on from step {step}"]


def describe_data_changes(folder: Path, recipe: Recipe, step: int) -> list[str]:
    """Each data setting that decides which samples are read and has changed since the start."""
    known = folder / "run.toml"
    if not step or not known.exists():
        return []
    try:
        before = asdict(read_recipe(known).data)
    except PlanError:  # edited since; what it was nobody knows
        return []
    now = asdict(recipe.data)
    return [
        f"data.{key} is {now[key]!r}, before it was {before[key]!r}: from step {step} on other "
        "samples are read"
        for key in now
        if now[key] != before[key] and key not in NO_SAMPLE_CHANGES
    ]


def write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as refused:
        raise RecordError(
            "run folder", f"{path} cannot be written ({refused.strerror})", "Name another folder."
        ) from refused
