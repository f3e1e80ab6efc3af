"""Stepladder takes any PyTorch model up the scaling ladder.

    import stepladder as sl

    run = sl.climb(model, loss="cross_entropy", optimizer="adamw lr=3e-4")
    for batch in run.batches(dataset, size=32):
        report = run.step(batch)

Names are imported when they are first used, so that planning needs no torch and starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepladder.hardware import Cluster as Cluster
    from stepladder.job import train as train
    from stepladder.launch import on_ranks as on_ranks
    from stepladder.model import build as build
    from stepladder.model import describe as describe
    from stepladder.plan import Plan as Plan
    from stepladder.planner import forecast as forecast
    from stepladder.planner import search as search
    from stepladder.track import open_journal as open_journal
    from stepladder.train import Run as Run
    from stepladder.train import climb as climb
    from stepladder.train import fit as fit
    from stepladder.train import from_lightning as from_lightning

HOMES = {  # public name: the package it lives in
    "Cluster": "hardware",
    "Plan": "plan",
    "Run": "train",
    "build": "model",
    "climb": "train",
    "describe": "model",
    "fit": "train",
    "forecast": "planner",
    "from_lightning": "train",
    "on_ranks": "launch",
    "open_journal": "track",
    "search": "planner",
    "train": "job",
}

__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'stepladder' has no attribute '{name}'")
    return getattr(import_module(f"stepladder.{HOMES[name]}"), name)
