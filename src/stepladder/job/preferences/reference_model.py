"""The reference model's log-probabilities: computed once, before the first step, kept with the run.

A resumed run finds them by a key of what they were computed from: the pairs, the model, and its
weights. So the reference model is never held beside the tuned one.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from stepladder.data import Source
from stepladder.data.conversations.preference_rows import PreferenceRows
from stepladder.plan import Recipe
from stepladder.train import Run
from stepladder.train.loop import held_out

FILE = "reference.safetensors"
WAIT_SECONDS = 600


def set_reference(
    run: Run, recipe: Recipe, folder: Path, training: Source, validation: Source
) -> list[str]:
    """Where samples are pairs: read the reference's log-probabilities, or compute and keep them.

    Called on every rank, before the run is loaded: the module has its first weights. The sentences
    say which it was.
    """
    named = {"training": training, "validation": validation}
    parts = {name: rows for name, rows in named.items() if isinstance(rows, PreferenceRows)}
    return [read_or_compute(run, recipe, folder, parts)] if parts else []


def read_or_compute(
    run: Run, recipe: Recipe, folder: Path, parts: dict[str, PreferenceRows]
) -> str:
    key, path, board = reference_key(recipe, parts), folder / FILE, run.world.notes
    if run.world.is_rank_zero:
        board.post("reference", "kept" if stored_key(path) == key else "new")
    if board.read("reference", WAIT_SECONDS) == "kept":
        with safe_open(path, "pt") as file:
            for name, rows in parts.items():
                rows.reference = file.get_tensor(name)
        return "the reference model's log-probabilities are those of the run's start"
    found = {name: compute(run, rows, recipe.train.batch) for name, rows in parts.items()}
    for name, rows in parts.items():
        rows.reference = found[name]
    if run.world.is_rank_zero:
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        save_file(found, partial, {"key": key})
        partial.rename(path)
    pairs = sum(len(rows) for rows in parts.values())
    return f"the reference model's log-probabilities of {pairs} pairs were computed, and are kept"


def compute(run: Run, rows: PreferenceRows, size: int) -> Tensor:
    """What the module returns now for every pair, in their order, on every rank."""
    batches = -(-len(rows) // size)
    found = run.predict(held_out(run, rows, size=size, most=batches))
    return torch.as_tensor(found).float().cpu().contiguous()


def reference_key(recipe: Recipe, parts: dict[str, PreferenceRows]) -> str:
    """What the log-probabilities depend on, as a hash."""
    model = {**asdict(recipe.model), "seed": recipe.train.seed}
    text = repr([sorted(model.items()), [(name, rows.key) for name, rows in parts.items()]])
    return hashlib.sha256(text.encode()).hexdigest()


def stored_key(path: Path) -> str:
    """The key of a file; empty if there is none that can be read."""
    try:
        with safe_open(path, "pt") as file:
            return (file.metadata() or {}).get("key", "")
    except Exception:  # missing, or damaged in any way: then they are computed anew
        return ""
