"""Checkpoints that are kept because of a value, such as the lowest validation loss.

The value stands in the checkpoint's own manifest, so it is committed together with the checkpoint
and a resumed run finds the best so far in the folder. Other checkpoints of the folder are kept by
age; neither rule deletes what the other keeps.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepladder.errors import RecordError

from .find import list_checkpoints, step_of
from .integrity import read_manifest

KEY = "best"  # of a manifest's state
MODES = ("min", "max")


@dataclass(frozen=True, slots=True)
class Ranking:
    """Why a checkpoint is kept."""

    value: float
    mode: str  # "min": the lowest values are the best; "max": the highest
    keep: int  # checkpoints of this mode in the folder

    @property
    def cost(self) -> float:
        """The lower, the better."""
        return -self.value if self.mode == "max" else self.value

    def to_state(self) -> dict[str, Any]:
        """Entries for the state of a manifest."""
        return {KEY: asdict(self)}


def read_ranking(path: Path) -> Ranking | None:
    """Why a checkpoint is kept; None where it is kept by age, or its manifest cannot be read."""
    try:
        found = read_manifest(path).state.get(KEY) or {}
        ranking = Ranking(float(found["value"]), str(found["mode"]), int(found["keep"]))
    except (OSError, RecordError, KeyError, TypeError, ValueError):
        return None
    return ranking if ranking.mode in MODES else None


def list_best(root: Path, mode: str) -> list[tuple[Path, Ranking]]:
    """The checkpoints of a folder that are kept for their values, the best first."""
    found = [(path, read_ranking(path)) for path in list_checkpoints(root)]
    ranked = [(path, why) for path, why in found if why is not None and why.mode == mode]
    return sorted(ranked, key=lambda one: (one[1].cost, step_of(one[0])))


def list_of_others(root: Path, mode: str, run: str) -> list[Path]:
    """Those of them that another run saved, by the token of this one."""
    return [
        path for path, _ in list_best(root, mode) if read_manifest(path).state.get("run") != run
    ]


def remove_worse(newest: Path) -> None:
    """Delete what is no longer among the best now that this checkpoint is there."""
    ranking = read_ranking(newest)
    if ranking is None:
        return
    for path, _ in list_best(newest.parent, ranking.mode)[ranking.keep :]:
        if path != newest and not path.name.startswith("."):
            shutil.rmtree(path, ignore_errors=True)
