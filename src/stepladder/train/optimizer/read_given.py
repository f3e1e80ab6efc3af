"""What a user gives for an optimizer, read: text, an instance, a class or a function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from stepladder.errors import PlanError
from stepladder.plan import Optimizer
from stepladder.rungs.loss_module import PREFIX as LOSS

from .given_optimizer import GivenOptimizer, check_settings, is_class, is_optimizer, name_of


def read_given(given: Any, model: nn.Module, loss: Any) -> GivenOptimizer | None:
    """Code that was given for an optimizer; None where it is none."""
    if isinstance(given, str | Optimizer):
        check_groups(Optimizer.parse(given) if isinstance(given, str) else given, model, loss)
        return None
    known = names_of_parameters(model, loss)
    if is_optimizer(given):
        check_settings(given)
        return read_instance(given, name_of(given), known)
    if not callable(given):
        problem = f"{type(given).__name__} is neither an optimizer nor the text of one"
        remedy = 'Write optimizer="adamw lr=3e-4", or give a torch.optim.Optimizer.'
        raise PlanError("optimizer", problem, remedy)
    code = GivenOptimizer(name_of(given), given)
    chosen = code if is_class(given) else with_groups(code, trainable(model, loss))
    return code if chosen.instance is None else read_instance(chosen.instance, code.name, known)


def check_groups(how: Optimizer, model: nn.Module, loss: Any) -> None:
    """Refuse a group that no parameter of the whole module, or of its loss, belongs to.

    On a rank a pattern may match nothing, because the parameters are on other stages; frozen
    parameters count, which another phase of a training may unfreeze.
    """
    first = names_of_parameters(model, loss)
    names = list(first.values())
    for pattern in (group.pattern for group in how.groups):
        if any(fnmatchcase(name, pattern) for name in names):
            continue
        shared = [
            (name, first[id(p)])
            for name, p in model.named_parameters(remove_duplicate=False)
            if fnmatchcase(name, pattern)
        ]
        if shared:
            problem = f"'{pattern}' matches only '{shared[0][0]}', which is '{shared[0][1]}'"
            raise PlanError("optimizer.group", problem, "Write the name that comes first.")
        problem = f"'{pattern}' matches none of {len(names)} parameters"
        near = " and ".join(f"'{name}'" for name in nearest_names(pattern, names))
        raise PlanError("optimizer.group", problem, f"The nearest are {near}." if near else "")


def nearest_names(pattern: str, names: Iterable[str], most: int = 2) -> list[str]:
    """The names that a misspelt pattern is most like, at their beginning or their end."""
    length = pattern.count(".") + 1

    def likeness(name: str) -> float:
        parts = name.split(".")
        ends = (".".join(parts[:length]), ".".join(parts[-length:]))
        return max(SequenceMatcher(None, pattern, end).ratio() for end in ends)

    return sorted(names, key=likeness, reverse=True)[:most]


def read_instance(
    given: torch.optim.Optimizer, name: str, known: Mapping[int, str]
) -> GivenOptimizer:
    """An optimizer of the module's parameters, of which `known` has the names."""
    for number, group in enumerate(given.param_groups):
        foreign = sum(id(p) not in known for p in group["params"])
        if foreign:
            raise PlanError(
                "optimizer",
                f"{foreign} of {len(group['params'])} parameters in group {number} of "
                f"{name_of(given)} belong neither to the module nor to its loss",
                "Make it of this module's parameters.",
            )
    names = tuple(tuple(known[id(p)] for p in group["params"]) for group in given.param_groups)
    return GivenOptimizer(name, None, given, names)


def with_groups(code: GivenOptimizer, parameters: list[nn.Parameter]) -> GivenOptimizer:
    """The optimizer that a function makes of whole parameters, where it groups or chooses them.

    It may do so by their shapes, which a rank's slices do not have.
    """
    made = code.made(parameters)
    groups = [group["params"] for group in made.param_groups]
    if len(groups) == 1 and len(groups[0]) == len(parameters):
        return code
    return replace(code, instance=made)


def names_of_parameters(model: nn.Module, loss: Any) -> dict[int, str]:
    """Each parameter's first name, those of a loss that is a module as groups see them."""
    found: dict[int, str] = {}
    for name, parameter in named_parameters(model, loss):
        found.setdefault(id(parameter), name)
    return found


def trainable(model: nn.Module, loss: Any) -> list[nn.Parameter]:
    """Each trainable parameter once, in the order of their names."""
    found = {id(p): p for _, p in named_parameters(model, loss) if p.requires_grad}
    return list(found.values())


def named_parameters(model: nn.Module, loss: Any) -> list[tuple[str, nn.Parameter]]:
    named = list(model.named_parameters())
    if isinstance(loss, nn.Module):
        named += [(f"{LOSS}{name}", p) for name, p in loss.named_parameters()]
    return named
