"""What a comparison of runs found, and what of it counts as the same.

Rounding is the only difference allowed, so what is allowed follows from the type worked in. Every
comparison is written so that a value that is not a number fails it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stepladder.plan import Plan
from stepladder.record import Memory

TOLERANCES = {  # largest relative difference of a loss, by the type worked in
    "float32": 1e-5,  # sums in another order, over a few steps
    "bfloat16": 2e-3,  # one rounding is 4e-3, and a mean over many targets averages them out
    "float16": 5e-4,  # three more bits of fraction than bf16; half of what they win is allowed
}
NORMS = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}  # a few roundings: nothing averages
# Of the parameters' way: rounding adds up over all parameters, and is held against a short way.
WAYS = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}


@dataclass(frozen=True, slots=True)
class Learned:
    """What one rank's run came to."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    apart: Mapping[str, float]  # distance of each parameter and buffer from the reference's
    state: Memory  # parameters, gradients and optimizer state this rank holds
    said: tuple[str, ...] = ()  # what the run announced: why its results depend on the plan


@dataclass(frozen=True, slots=True)
class Plain:
    """The reference's run, and where its last state is kept."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    weights: Path
    names: frozenset[str]
    moved: float  # how far all parameters went together
    buffers: Mapping[str, float] = field(default_factory=dict)  # how far each went


@dataclass(frozen=True, slots=True)
class Sameness:
    """One plan under one optimizer, held against one device; `problem` says why it never ran."""

    plan: str
    optimizer: str
    ranks: int
    loss: float = math.inf  # largest relative difference of any step
    norm: float = math.inf
    parameters: float = math.inf  # of all, relative to how far the reference moved them
    buffers: float = 0.0  # of the one furthest off, relative to how far the reference moved it
    worst: str = ""  # the parameter or buffer that is furthest from where it should be
    tolerance: float = 0.0  # of losses
    norm_tolerance: float = 0.0
    state_tolerance: float | None = None  # of parameters; None: shown, not judged
    by_step: tuple[float, ...] = ()  # relative difference of each loss
    states: tuple[Memory, ...] = field(default=(), repr=False)  # by rank
    said: tuple[str, ...] = ()  # the run's own reasons why results depend on the plan
    problem: str = ""
    refused: bool = False  # the plan itself is the problem, and its user can mend it

    @property
    def same(self) -> bool:
        # Written so that a difference that is not a number is none that is small.
        near = self.loss <= self.tolerance and self.norm <= self.norm_tolerance
        return near and (self.state_tolerance is None or self.state <= self.state_tolerance)

    @property
    def state(self) -> float:
        """How far parameters or buffers are off, whichever is more."""
        return largest((self.parameters, self.buffers))

    @property
    def reason(self) -> str:
        """Why it never ran; or what is furthest off, and what the run itself said of it."""
        return self.problem or "; ".join((f"furthest is {self.worst}", *self.said))

    @property
    def verdict(self) -> str:
        if self.problem:
            return "refused" if self.refused else "BROKE"
        return "same" if self.same else "DIFFERENT"


def judge(shown: Sameness, plan: Plan, plain: Plain, found: Sequence[Learned]) -> Sameness:
    """All ranks' findings as one: the largest difference any of them saw."""
    work, optimizer = narrowest(plan), plan.optimizer
    parameters = {name: furthest(found, name) for name in plain.names}
    buffers = {
        name: furthest(found, name) / moved if moved else furthest(found, name) and math.inf
        for name, moved in plain.buffers.items()
    }
    total = math.sqrt(sum(value**2 for value in parameters.values())) / plain.moved
    worst = {name: value / plain.moved for name, value in parameters.items()}
    if largest(buffers.values()) > total:
        worst = buffers
    by_rank = [differences(plain.losses, rank.losses) for rank in found]
    plain_sgd = optimizer.name == "sgd" and optimizer.clip is None
    return replace(
        shown,
        loss=largest(value for row in by_rank for value in row),
        norm=largest(value for rank in found for value in differences(plain.norms, rank.norms)),
        parameters=total,
        buffers=largest(buffers.values()),
        worst=max(worst, key=lambda name: (worst[name], name)),
        tolerance=TOLERANCES[work],
        norm_tolerance=NORMS[work],
        state_tolerance=WAYS[work] if plain_sgd else None,
        by_step=tuple(map(largest, zip(*by_rank))),
        states=tuple(rank.state for rank in found),
        said=tuple(dict.fromkeys(line for rank in found for line in rank.said)),
    )


def furthest(found: Sequence[Learned], name: str) -> float:
    """How far a tensor is off on the rank where it is most; infinitely where no rank has it."""
    return largest([rank.apart[name] for rank in found if name in rank.apart] or [math.inf])


def narrowest(plan: Plan) -> str:
    """The type with the fewest bits of fraction that gradients pass through."""
    sent = {"bf16": "bfloat16", "fp16": "float16"}.get(plan.compress.kind, plan.precision.work)
    return max((plan.precision.work, sent), key=lambda name: TOLERANCES[name])


def differences(expected: Sequence[float], found: Sequence[float]) -> list[float]:
    return [relative(one, other) for one, other in zip(expected, found, strict=True)]


def relative(expected: float, found: float) -> float:
    if found == expected or not (math.isfinite(expected) or math.isfinite(found)):
        return 0.0  # a step that both leave out, as fp16 does while it looks for its scale
    return abs(found - expected) / abs(expected) if expected else math.inf


def largest(values: Iterable[float]) -> float:
    """The largest; not a number where one is none, which `max` may pass over."""
    every = list(values)
    return math.nan if any(map(math.isnan, every)) else max(every, default=0.0)
