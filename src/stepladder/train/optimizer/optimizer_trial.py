"""Trials of an optimizer that is given as code: may ranks share its work as a plan has them do?

ZeRO and tensor parallelism have each rank update a slice of a parameter, and a pipeline some of the
parameters. That is the same update where the rule works element by element, which no code says of
itself. So small matrices and vectors are trained together and in parts, each part by an optimizer
of its own, and the results compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stepladder.errors import PlanError, first_line
from stepladder.plan import SettledPlan

from .given_optimizer import GivenOptimizer

STEPS = 3
TOLERANCE = 1e-5  # relative; rules of one element differ by rounding where torch takes many at once
SHAPES = {0: (), 1: (5,), 2: (6, 4)}  # by the number of dimensions; more are taken for two
EVERY = slice(None)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of one of the tensors that are trained."""

    index: int
    where: tuple[slice, ...] = ()
    flat: bool = False  # of its elements in a row

    def of(self, tensors: list[Tensor]) -> Tensor:
        tensor = tensors[self.index]
        return (tensor.reshape(-1) if self.flat else tensor)[self.where]


def check_trials(given: GivenOptimizer, settled: SettledPlan) -> None:
    """Refuse a plan whose ranks would compute something else than one device."""
    layout = settled.layout
    sliced = settled.state_ranks > 1 or layout.tensor > 1
    for group in range(len(given.names) or 1) if not settled.one_rank else ():
        shapes = shapes_of(given, group)
        try:
            together = train(given, group, shapes)
            again = train(given, group, shapes, seed=1)
        except Exception as error:
            if sliced or layout.pipeline > 1:
                failed = f"raised {type(error).__name__} ({first_line(error)}) for small matrices"
                raise refused(
                    given, f"{failed}, so nobody knows whether {layout} fits it"
                ) from error
            continue  # copies are updated whole
        if any(distance(*pair) for pair in zip(together, again)):
            raise refused(given, f"draws random numbers, and copies in {layout} must stay the same")
        if sliced:
            parts = [part for index, shape in enumerate(shapes) for part in cuts(index, len(shape))]
            compare(given, group, parts, f"a slice of a parameter, and {layout} slices them")
        if layout.pipeline > 1:
            alone = [Part(index) for index in range(len(shapes))]
            compare(given, group, alone, f"a parameter by itself, and {layout} parts them")


def shapes_of(given: GivenOptimizer, group: int) -> list[tuple[int, ...]]:
    """Of what to try: two of each kind that the group has; matrices and vectors where none says."""
    dimensions = {1, 2}
    if given.instance is not None and given.instance.param_groups[group]["params"]:
        dimensions = {min(p.ndim, 2) for p in given.instance.param_groups[group]["params"]}
    return [SHAPES[count] for count in sorted(dimensions) for _ in range(2)]


def cuts(index: int, dimensions: int) -> Iterator[Part]:
    """Each way in which a rung slices a tensor: its rows, its columns, its elements in a row."""
    if dimensions:
        yield from (Part(index, (slice(3),)), Part(index, (slice(3, None),)))
    if dimensions > 1:
        yield from (Part(index, (EVERY, slice(2))), Part(index, (EVERY, slice(2, None))))
        yield from (Part(index, (slice(7),), True), Part(index, (slice(7, None),), True))


def compare(given: GivenOptimizer, group: int, parts: list[Part], what: str) -> None:
    shapes = shapes_of(given, group)
    together = train(given, group, shapes)
    for part in parts:
        try:
            (alone,) = train(given, group, shapes, part=part)
        except Exception as error:
            failed = f"raised {type(error).__name__} ({first_line(error)}) for {what}"
            raise refused(given, failed) from error
        off = distance(alone, part.of(together))
        if not off <= TOLERANCE:
            raise refused(given, f"differs by {off:.2g} after {STEPS} steps for {what}")


def distance(mine: Tensor, other: Tensor) -> float:
    return float((mine - other).norm() / other.norm())


def train(
    given: GivenOptimizer,
    group: int,
    shapes: list[tuple[int, ...]],
    *,
    part: Part | None = None,
    seed: int = 0,
) -> list[Tensor]:
    """Tensors of these shapes, or a part of one, after a few steps on the same gradients."""
    numbers = torch.Generator().manual_seed(0)

    def drawn() -> list[Tensor]:
        made = [torch.randn(shape, generator=numbers) for shape in shapes]
        return made if part is None else [part.of(made).clone()]

    parameters = [nn.Parameter(one) for one in drawn()]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        optimizer = given.like(parameters, group)
        for _ in range(STEPS):
            for parameter, gradient in zip(parameters, drawn()):
                parameter.grad = gradient
            optimizer.step()
    return [parameter.detach() for parameter in parameters]


def refused(given: GivenOptimizer, reason: str) -> PlanError:
    remedy = "Use ddp, whose ranks update whole copies, or one that works element by element."
    return PlanError("optimizer", f"{given.name} {reason}", remedy)
