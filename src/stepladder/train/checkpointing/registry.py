"""Objects whose state is saved and restored with a run: an EMA, early stopping, a user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from stepladder.errors import PlanError


@runtime_checkable
class Stateful(Protocol):
    """An object with a state of numbers, texts, bytes, tensors, lists and dictionaries."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@runtime_checkable
class StatefulTensors(Stateful, Protocol):
    """One that also has a tensor for each of some parameters or buffers.

    A rank has as much of it as it has of the parameter; a checkpoint stores it in slices of the
    whole, so a run in another layout finds the part it needs.
    """

    def tensors(self) -> Mapping[str, Tensor]:
        """By the name of the parameter, in the shape of what this rank's optimizer updates."""
        ...

    def restart(self) -> None:
        """Set the tensors from the run as it is: it was put where a checkpoint left off."""
        ...


@dataclass(slots=True)
class Registry:
    """The objects that are saved and restored with a run, by name."""

    objects: dict[str, Stateful] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # by name: the checkpoint that holds it

    def add(self, name: str, stateful: Stateful) -> None:
        if not isinstance(name, str) or not name or "/" in name:
            raise PlanError("name", f"'{name}' cannot name an object to save", "Use one word.")
        if name in self.objects:
            raise PlanError(
                "name", f"'{name}' is registered with this run already", "Use another name."
            )
        if name in self.left_out:
            raise PlanError(
                "name",
                f"{self.left_out[name]} holds a '{name}' and was loaded before it was registered",
                "Create it before `run.resume` or `run.load`.",
            )
        if not isinstance(stateful, Stateful):
            lacking = f"{type(stateful).__name__} has no state_dict and load_state_dict"
            raise PlanError(name, lacking, "Define both.")
        self.objects[name] = stateful
