"""Learning-rate schedules that are given as code: a function of the step, or a torch scheduler."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from stepladder.errors import PlanError, first_line
from stepladder.plan import Rate

from .given_optimizer import name_of
from .learning_rates import CONSTANT, SCHEDULED

OF_STEP = "It is given the step and returns a share of the rate: lambda step: 0.95**step."


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

    def __init__(self, made: LRScheduler) -> None:
        self.made = made
        self.begun = copy.deepcopy(made.state_dict())
        self.settings = [
            {key: copy.deepcopy(group[key]) for key in SCHEDULED if key in group}
            for group in made.optimizer.param_groups
        ]
        self.failed: PlanError | None = None  # its last step, to be told before the run's next

    def advance(self) -> None:
        try:
            self.made.step()
        except Exception as error:  # such as of one that was made for fewer steps
            name = type(self.made).__name__
            problem = f"{name}.step raised {type(error).__name__}: {first_line(error)}"
            self.failed = PlanError("rate", problem, "Make it for as many steps as the run takes.")
            self.failed.__cause__ = error

    def check(self) -> None:
        """Refuse a step for which there is no rate."""
        if self.failed is not None:
            raise self.failed

    def restart(self, steps: int) -> None:
        """Be as after so many steps."""
        self.failed = None
        for group, settings in zip(self.made.optimizer.param_groups, self.settings):
            group |= copy.deepcopy(settings)
        self.made.load_state_dict(copy.deepcopy(self.begun))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that no optimizer took these steps
            for _ in range(steps):
                self.advance()

    def __str__(self) -> str:
        words = [
            f"{key}={value}"
            for key, value in self.begun.items()
            if isinstance(value, int | float) and key != "last_epoch" and not key.startswith("_")
        ]
        return " ".join([f"python:{type(self.made).__name__}", *words])


def is_scheduler(given: Any) -> bool:
    """Whether it is a torch scheduler, its class, or a functools.partial of that."""
    while hasattr(given, "func"):
        given = given.func
    return isinstance(given, LRScheduler) or (
        isinstance(given, type) and issubclass(given, LRScheduler)
    )


def read_rate(given: Any) -> Rate | RateFunction:
    """The schedule that a run asks at each step; constant where a torch scheduler sets the rate."""
    if isinstance(given, str):
        return Rate.parse(given)
    if isinstance(given, Rate | RateFunction):
        return given
    if given is None or is_scheduler(given):
        return CONSTANT
    if not callable(given):
        problem = f"{type(given).__name__} is no schedule"
        remedy = 'Write rate="cosine warmup=100 steps=1000", or give a function of the step.'
        raise PlanError("rate", problem, remedy)
    return RateFunction(given) if failure_at_start(given) is None else CONSTANT


def failure_at_start(function: Callable[[Any], Any]) -> str | None:
    """Why a function gives no rate for step 0: it may make a scheduler of an optimizer instead."""
    try:
        float(function(0))
    except Exception as error:
        return f"raised {type(error).__name__} for step 0: {first_line(error)}"
    return None


def make_scheduler(given: Any, optimizer: torch.optim.Optimizer) -> Scheduler | None:
    """The torch scheduler of a run's optimizer; None where something else sets the rate."""
    if given is None or isinstance(given, str | Rate | RateFunction):
        return None
    if isinstance(given, LRScheduler):
        name, made = type(given).__name__, given
    elif is_scheduler(given):
        name, made = name_of(given), None
    elif (failure := failure_at_start(given)) is None:
        return None
    else:
        name, made = name_of(given), made_scheduler(given, optimizer, failure)
    if "ReduceLROnPlateau" in (name, type(made).__name__):
        problem = "ReduceLROnPlateau needs a measure at each step, which a run does not have"
        remedy = "Make it for run.optimizer and call its step(value) in your loop."
        raise PlanError("rate", problem, remedy)
    if made is None:
        made = made_scheduler(given, optimizer)
    if made.optimizer is not optimizer:
        problem = f"{name} is a scheduler of another optimizer than the run's"
        raise PlanError("rate", problem, f"Give its optimizer too, or partial({name}).")
    return Scheduler(made)


def made_scheduler(
    make: Callable[[Any], Any], optimizer: torch.optim.Optimizer, otherwise: str = ""
) -> LRScheduler:
    """What a class or a function makes of the optimizer.

    Args:
        otherwise: why it is no function of the step.
    """
    name = name_of(make)
    try:
        made = make(optimizer)
    except Exception as error:
        problem = f"{name}(optimizer) raised {type(error).__name__}: {first_line(error)}"
        if otherwise:
            raise PlanError("rate", f"{name} {otherwise}", OF_STEP) from error
        raise PlanError("rate", problem, f"Give functools.partial({name}, …).") from error
    if not isinstance(made, LRScheduler):
        raise PlanError("rate", f"{name} {otherwise}", OF_STEP)
    return made
