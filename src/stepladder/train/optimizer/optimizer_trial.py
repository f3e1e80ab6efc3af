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
from stepladder.seam.pytree import tree_leaves

from .given_optimizer import GivenOptimizer, state_after_step

STEPS = 12  # some rules begin otherwise, such as RAdam's
TOLERANCE = 1e-5  # relative; rules of one element differ by rounding where torch takes many at once
SHAPES = {0: (), 1: (33,), 2: (24, 16)}  # by the number of dimensions; more are taken for two
EVERY = slice(None)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of one of the tensors that are trained."""

    index: int
    where: tuple[slice, ...] = ()
    flat: bool = False  # of its elements in a row
    alone: bool = False  # trained without the other tensors

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
            drawn = f"draws random numbers, and copies in {layout} must stay the same"
            raise refused(given, drawn, "Use one rank, or an optimizer that draws none.")
        if sliced:
            refuse_nested(given, group, shapes, str(layout))
            parts = [part for index, shape in enumerate(shapes) for part in cuts(index, len(shape))]
            told = f"a slice of a parameter, and {layout} slices them"
            compare(given, group, together, parts, told)
        if layout.pipeline > 1:
            alone = [Part(index, alone=True) for index in range(len(shapes))]
            told = f"a parameter by itself, and {layout} parts them"
            compare(given, group, together, alone, told)


def shapes_of(given: GivenOptimizer, group: int) -> list[tuple[int, ...]]:
    """Of what to try: two of each kind that the group has; matrices and vectors where none says."""
    dimensions = {1, 2}
    if given.instance is not None and given.instance.param_groups[group]["params"]:
        dimensions = {min(p.ndim, 2) for p in given.instance.param_groups[group]["params"]}
    return [SHAPES[count] for count in sorted(dimensions) for _ in range(2)]


def cuts(index: int, dimensions: int) -> Iterator[Part]:
    """Each way in which a rung slices a tensor: its rows, its columns, its elements in a row."""
    if dimensions:
        yield from (Part(index, (slice(12),)), Part(index, (slice(12, None),)))
    if dimensions > 1:
        yield from (Part(index, (EVERY, slice(8))), Part(index, (EVERY, slice(8, None))))
        yield from (Part(index, (slice(100),), True), Part(index, (slice(100, None),), True))


def compare(
    given: GivenOptimizer, group: int, together: list[Tensor], parts: list[Part], what: str
) -> None:
    """Refuse an optimizer for which a part is not what it is among tensors trained together."""
    shapes = [tuple(tensor.shape) for tensor in together]
    for part in parts:
        try:
            mine = train(given, group, shapes, part=part)[0 if part.alone else part.index]
        except Exception as error:
            failed = f"raised {type(error).__name__} ({first_line(error)}) for {what}"
            raise refused(given, failed) from error
        off = distance(mine, part.of(together))
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
        if part is not None:
            made[part.index] = part.of(made).clone()
        return [made[part.index]] if part is not None and part.alone else made

    parameters = [nn.Parameter(one) for one in drawn()]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        optimizer = given.like(parameters, group, hooked=True)
        for _ in range(STEPS):
            for parameter, gradient in zip(parameters, drawn()):
                parameter.grad = gradient
            optimizer.step()
    return [parameter.detach() for parameter in parameters]


def refuse_nested(
    given: GivenOptimizer, group: int, shapes: list[tuple[int, ...]], layout: str
) -> None:
    """Refuse tensors inside of dictionaries and lists, which nobody could put together again."""
    small = nn.Parameter(torch.ones(shapes[-1]))
    kept = state_after_step(given.like([small], group), small) or {}
    for key, value in kept.items():
        if not isinstance(value, Tensor) and any(isinstance(t, Tensor) for t in tree_leaves(value)):
            problem = f"keeps a tensor inside of '{key}', of which each rank in {layout} has a part"
            raise refused(given, problem, f"Keep it in the state under a key of its own, or {DDP}")


DDP = "use ddp, whose ranks update whole copies."
WHOLE = f"Have it work element by element, or {DDP}"


def refused(given: GivenOptimizer, reason: str, remedy: str = WHOLE) -> PlanError:
    return PlanError("optimizer", f"{given.name} {reason}", remedy)
