"""The first tensor in which a plan's run parts from one device's: by step, in order of computing.

Both runs are taken again, step by step. In each step the loss comes first; then the gradients, the
last parameter's before the first's, as backward computes them; then the parameters after the
update. A gradient is compared by its norm over the whole parameter, whichever ranks hold it.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from stepladder.launch import on_ranks
from stepladder.train import Run

from .parity_trial import Course, distances, plain_of, squared_distance, start, whole_parameters
from .parity_verdict import NORMS, TOLERANCES, WAYS, narrowest, relative

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

    loss: float
    norm: float  # of all gradients
    norms: Mapping[str, float]  # of every parameter's gradient that this rank has a part of
    apart: Mapping[str, float]  # squared distance of each parameter: from where one device has it
    moved: float = 0.0  # on one device: how far all parameters are from where they began


def locate(course: Course) -> Difference | None:
    """Run a course again on one device and on its ranks; None where nothing differs."""
    with tempfile.TemporaryDirectory(prefix="locate-") as name:
        folder = Path(name)
        expected = follow_plain(replace(course, plan=plain_of(course)), folder)
        found = on_ranks(follow_rank, course.plan.layout.num_ranks, course, folder)
    return next(differences(course, expected, found), None)


def follow_plain(course: Course, folder: Path) -> list[Moment]:
    """One device's steps; its parameters after each are kept in the folder."""
    run, samples = start(course)
    first, moments = whole_parameters(run), []
    for step, moment in enumerate(moments_of(run, samples, course.steps)):
        last = whole_parameters(run)
        torch.save(last, folder / f"{step}.pt")
        moved = math.sqrt(sum(squared_distance(last[name], first[name]) for name in last))
        moments.append(replace(moment, moved=moved))
    return moments


def follow_rank(course: Course, folder: Path) -> list[Moment]:
    """One rank's steps, with each parameter's distance from where one device has it."""
    run, samples = start(course)
    return [
        replace(moment, apart=distances(run, folder / f"{step}.pt"))
        for step, moment in enumerate(moments_of(run, samples, course.steps))
    ]


def moments_of(run: Run, samples: Any, steps: int) -> Iterator[Moment]:
    """Every step's numbers, read before the next one is taken."""
    with run.batches(samples, run.plan.batch.sequences, workers=0) as feed:
        for batch in islice(feed, steps):
            pending = run.step(batch)
            mark = run.health.unread[-1]  # its gradients' norms, which reading lets go of
            scale = 1.0 if mark.scale is None else mark.scale.item()
            norms = zip(mark.norms.names, (mark.norms.each / scale).tolist())
            report = pending.read()
            yield Moment(report.loss, report.grad_norm, dict(norms), {})


def differences(
    course: Course, expected: Sequence[Moment], found: Sequence[Sequence[Moment]]
) -> Iterator[Difference]:
    """Everything that differs by more than rounding, in the order in which it was computed."""
    work, optimizer = narrowest(course.plan), course.plan.optimizer
    plain_sgd = optimizer.name == "sgd" and optimizer.clip is None
    for step, (one, ranks) in enumerate(zip(expected, zip(*found))):
        at = partial(Difference, course.name, step)
        for rank in ranks:
            if not relative(one.loss, rank.loss) <= TOLERANCES[work]:
                yield at("loss", "", one.loss, rank.loss, TOLERANCES[work])
        for name, norm in reversed(list(one.norms.items())):
            allowed = NORMS[work] * max(norm, NEGLIGIBLE * one.norm)
            for other in (rank.norms[name] for rank in ranks if name in rank.norms):
                if not abs(other - norm) <= allowed:
                    yield at("gradient", name, norm, other, NORMS[work])
        apart = {name: max(r.apart.get(name, 0.0) for r in ranks) for name in joined(ranks)}
        away = math.sqrt(sum(apart.values())) / one.moved if one.moved else 0.0
        if plain_sgd and not away <= WAYS[work]:
            yield at("parameter", max(apart, key=apart.__getitem__), 0.0, away, WAYS[work])


def joined(ranks: Sequence[Moment]) -> list[str]:
    """The parameters that any rank holds a part of, in the order of the module."""
    return list(dict.fromkeys(name for rank in ranks for name in rank.apart))
