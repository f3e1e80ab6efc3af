"""The first tensor in which a plan's run parts from one device's: by step, in order of computing.

Both runs are taken again, step by step. In each step the loss comes first; then the gradients, the
last parameter's before the first's, as backward computes them; then the parameters after the
update. A gradient is compared by its norm over the whole parameter, whichever ranks hold it.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from stepladder.launch import on_ranks

from .course import Course, start
from .parity_verdict import NORMS, TOLERANCES, WAYS, narrowest, relative
from .plain_loop import StepNumbers
from .reference import distances, engine_steps, movement, start_reference, whole_parameters

NEGLIGIBLE = 1e-3  # of the whole norm: a smaller gradient is compared with this share of it


@dataclass(frozen=True, slots=True)
class Difference:
    """The first number that is not what one device computes."""

    plan: str
    step: int
    kind: Literal["loss", "gradient", "parameter"]
    name: str  # of the parameter; empty for the loss
    expected: float  # the loss, the gradient's norm, or for a parameter nothing (0)
    found: float  # the same under the plan; for a parameter its distance, of all movement
    tolerance: float

    def __str__(self) -> str:
        where = f"'{self.plan}', step {self.step}"
        if self.kind == "loss":
            return f"{where}: loss {self.found:.8g} instead of {self.expected:.8g}"
        if self.kind == "gradient":
            numbers = f"norm {self.found:.6g} instead of {self.expected:.6g}"
            return f"{where}: gradient of {self.name}, {numbers}"
        return f"{where}: parameter {self.name}, {self.found:.1e} of all movement away"


@dataclass(frozen=True, slots=True)
class Moment:
    """What one rank saw of one step."""

    numbers: StepNumbers
    apart: Mapping[str, float]  # of each parameter this rank can put together, from the reference's
    moved: float = 0.0  # on one device: how far all parameters are from where they began


def locate(course: Course) -> Difference | None:
    """Run a course again on one device and on its ranks; None where nothing differs."""
    with tempfile.TemporaryDirectory(prefix="locate-") as name:
        folder = Path(name)
        expected = follow_reference(course, folder)
        found = on_ranks(follow_rank, course.plan.layout.num_ranks, course, folder)
    return next(differences(course, expected, found), None)


def follow_reference(course: Course, folder: Path) -> list[Moment]:
    """The reference's steps; its parameters after each are kept in the folder."""
    module, steps = start_reference(course)
    first, moments = whole_parameters(module), []
    for step, numbers in enumerate(steps):
        last = whole_parameters(module)
        torch.save(last, folder / f"{step}.pt")
        moments.append(Moment(numbers, {}, movement(first, last)))
    return moments


def follow_rank(course: Course, folder: Path) -> list[Moment]:
    """One rank's steps, with each parameter's distance from where the reference has it."""
    run, samples = start(course)
    return [
        Moment(numbers, distances(run, folder / f"{step}.pt"))
        for step, numbers in enumerate(engine_steps(run, samples, course.steps))
    ]


def differences(
    course: Course, expected: Sequence[Moment], found: Sequence[Sequence[Moment]]
) -> Iterator[Difference]:
    """Everything that differs by more than rounding, in the order in which it was computed."""
    work, optimizer = narrowest(course.plan), course.plan.optimizer
    plain_sgd = optimizer.name == "sgd" and optimizer.clip is None
    for step, (one, ranks) in enumerate(zip(expected, zip(*found))):
        at = partial(Difference, course.name, step)
        numbers, others = one.numbers, [rank.numbers for rank in ranks]
        for other in others:
            if not relative(numbers.loss, other.loss) <= TOLERANCES[work]:
                yield at("loss", "", numbers.loss, other.loss, TOLERANCES[work])
        for name, norm in reversed(list(numbers.norms.items())):
            allowed = NORMS[work] * max(norm, NEGLIGIBLE * numbers.norm)
            for value in (other.norms[name] for other in others if name in other.norms):
                if not abs(value - norm) <= allowed:
                    yield at("gradient", name, norm, value, NORMS[work])
        apart = {name: max(r.apart.get(name, 0.0) for r in ranks) for name in joined(ranks)}
        total = math.sqrt(sum(value**2 for value in apart.values()))
        away = total / one.moved if one.moved else 0.0
        if plain_sgd and not away <= WAYS[work]:
            yield at("parameter", max(apart, key=apart.__getitem__), 0.0, away, WAYS[work])


def joined(ranks: Sequence[Moment]) -> list[str]:
    """The parameters that any rank holds a part of, in the order of the module."""
    return list(dict.fromkeys(name for rank in ranks for name in rank.apart))
