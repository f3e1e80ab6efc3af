"""Learning-rate schedules that are given as code: a function of the step, or a torch scheduler."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import lr_scheduler

from stepladder.errors import PlanError, first_line
from stepladder.plan import Rate

from .build_optimizer import CONSTANT, SCHEDULED
from .given_optimizer import name_of


@dataclass(frozen=True, slots=True)
class RateFunction:
    """A function from the step to a share of the top learning rate."""

    function: Callable[[int], float]

    def factor(self, step: int) -> float:
        try:
            share = float(self.function(step))
        except Exception as error:
            raise self._refused(f"raised {type(error).__name__}: {first_line(error)}") from error
        if not 0 <= share < math.inf:
            raise self._refused(f"returned {share}")
        return share

    def _refused(self, problem: str) -> PlanError:
        remedy = "Return a share of the learning rate, 0 or more, for every step."
        return PlanError("rate", f"{name_of(self.function)} {problem}", remedy)

    def __str__(self) -> str:
        return f"python:{name_of(self.function)}"


class Scheduler:
    """A torch scheduler that takes a step after each of the run's.

    Its state follows from the number of steps: a resumed run begins it anew and takes as many, so
    that the rates are those of a run that never stopped, to the last digit.
    """

    def __init__(self, made: lr_scheduler.LRScheduler) -> None:
        self.made = made
        self.begun = copy.deepcopy(made.state_dict())
        self.settings = [
            {key: group[key] for key in SCHEDULED if key in group}
            for group in made.optimizer.param_groups
        ]

    def advance(self) -> None:
        self.made.step()

    def restart(self, steps: int) -> None:
        """Be as after so many steps."""
        for group, settings in zip(self.made.optimizer.param_groups, self.settings):
            group |= settings
        self.made.load_state_dict(copy.deepcopy(self.begun))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that no optimizer took these steps
            for _ in range(steps):
                self.advance()

    def __str__(self) -> str:
        return f"python:{type(self.made).__name__}"


def is_scheduler(given: Any) -> bool:
    """Whether it is a torch scheduler, its class, or a functools.partial of that."""
    if isinstance(given, lr_scheduler.LRScheduler):
        return True
    while hasattr(given, "func"):
        given = given.func
    return isinstance(given, type) and issubclass(given, lr_scheduler.LRScheduler)


def read_rate(given: Any) -> Rate | RateFunction:
    """The schedule that a run asks at each step; constant where a torch scheduler sets the rate."""
    if isinstance(given, str):
        return Rate.parse(given)
    if isinstance(given, Rate | RateFunction):
        return given
    if is_scheduler(given):
        return CONSTANT
    if not callable(given):
        problem = f"{type(given).__name__} is no schedule"
        remedy = 'Write rate="cosine warmup=100 steps=1000", or give a function of the step.'
        raise PlanError("rate", problem, remedy)
    return RateFunction(given)


def make_scheduler(given: Any, optimizer: torch.optim.Optimizer) -> Scheduler | None:
    """The torch scheduler of a run's optimizer; None where something else sets the rate."""
    if not is_scheduler(given):
        return None
    name = (
        name_of(given) if not isinstance(given, lr_scheduler.LRScheduler) else type(given).__name__
    )
    if "ReduceLROnPlateau" in name:
        problem = f"{name} needs a measure at each step, which a run does not have"
        remedy = "Make it for run.optimizer and call its step(value) in your loop."
        raise PlanError("rate", problem, remedy)
    if isinstance(given, lr_scheduler.LRScheduler):
        if given.optimizer is not optimizer:
            problem = f"{name} is a scheduler of another optimizer than the run's"
            raise PlanError(
                "rate", problem, f"Give its optimizer too, or functools.partial({name})."
            )
        return Scheduler(given)
    try:
        return Scheduler(given(optimizer))
    except Exception as error:
        problem = f"{name}(optimizer) raised {type(error).__name__}: {first_line(error)}"
        raise PlanError("rate", problem, f"Give functools.partial({name}, …).") from error
