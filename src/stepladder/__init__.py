"""Stepladder takes any PyTorch model up the scaling ladder.

    import stepladder as sl

    run = sl.climb(model, loss="cross_entropy", optimizer="adamw lr=3e-4")
    for batch in run.batches(dataset, size=32):
        report = run.step(batch)

Names are imported when they are first used, so that planning needs no torch and starts at once.

`plan`, `train` and `launch` are packages as well: `stepladder.plan.Plan` is a type, and
`sl.plan("llama3-8b", on="8 x H100-80GB")` is a call. Python binds a package to its parent's
attribute when it is first imported, by whomever; so the packages themselves can be called.
"""

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .services import register

if TYPE_CHECKING:
    from stepladder import verify as verify
    from stepladder.cli.launch_call import launch as launch
    from stepladder.hardware import Cluster as Cluster
    from stepladder.job import profile as profile
    from stepladder.job import train as train
    from stepladder.launch import on_ranks as on_ranks
    from stepladder.model import build as build
    from stepladder.model import describe as describe
    from stepladder.plan import Plan as Plan
    from stepladder.planner import forecast as forecast
    from stepladder.planner import plan as plan
    from stepladder.planner import search as search
    from stepladder.train import climb as climb
    from stepladder.train import fit as fit
    from stepladder.train import from_lightning as from_lightning

HOMES = {  # public name: where it lives
    "Cluster": "hardware",
    "Plan": "plan",
    "build": "model",
    "climb": "train",
    "describe": "model",
    "fit": "train",
    "forecast": "planner",
    "from_lightning": "train",
    "launch": "cli.launch_call",
    "on_ranks": "launch",
    "plan": "planner",
    "profile": "job",
    "search": "planner",
    "train": "job",
    "verify": "",
}

__all__ = list(HOMES)

SERVICES = {  # what packages ask of one above them, and which it is
    "detect_cluster": "world",
    "forecast_by_rehearsal": "rehearse",
    "rehearse_failure": "rehearse",
    "speeds_here": "calibrate",
}

CALLED = ("launch", "plan", "train")  # packages that can be called


def find(name: str) -> Any:
    """The public thing of that name, where it lives."""
    return load(HOMES[name], name)


def load(home: str, name: str) -> Any:
    return getattr(import_module(f"stepladder.{home}"), name)


class SentByName(ModuleType):
    """A module that another process imports: pickle knows only those of Python's own class."""

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        return import_module, (self.__name__,)


class CalledPackage(SentByName):
    """A package that can also be called: the function of its name, which lives elsewhere."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._function()(*args, **named)

    def _function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = find(self.__name__.rpartition(".")[2])
        return function

    @property
    def __signature__(self) -> Any:  # for help() and notebooks
        return import_module("inspect").signature(self._function())


class Door(SentByName):
    """This package: it makes a package callable when Python binds it here."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in CALLED and isinstance(value, ModuleType):
            value.__class__ = CalledPackage
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'stepladder' has no attribute '{name}'")
    if name in CALLED or not HOMES[name]:
        return import_module(f"stepladder.{name}")
    return find(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})


sys.modules[__name__].__class__ = Door
for asked, answering in SERVICES.items():
    register(asked, partial(load, answering, asked))
