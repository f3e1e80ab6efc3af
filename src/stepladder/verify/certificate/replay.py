"""A certificate's runs, taken again on this machine and held against what it says."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch

from stepladder.errors import PlanError, RecordError
from stepladder.launch import Ranks
from stepladder.plan import Plan
from stepladder.train.checkpointing.rng_state import untouched
from stepladder.verify.course import Course
from stepladder.verify.parity_verdict import TOLERANCES, WAYS, narrowest, relative
from stepladder.verify.subjects import Subject

from .certificate import Certificate, CertifiedRun, Fingerprint
from .record_run import made_with, record_run

WIDTH = 80
Word = Literal["identical bits", "the same within tolerance", "DIFFERENT"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """One run of a certificate, taken again."""

    plan: str
    optimizer: str
    verdict: Word
    steps: int  # that were taken and compared
    step: int | None = None  # the first of other bits, or the first that is too far away
    tensor: str = ""  # the loss, a parameter or a buffer, likewise
    off: float = 0.0  # how far it is away: of the loss, or of the parameter's way so far

    def __str__(self) -> str:
        where = f"step {self.step}, {self.tensor}"
        ending = {
            "identical bits": "",
            "the same within tolerance": f", other bits from {where} on, off by {self.off:.1e}",
            "DIFFERENT": f" at {where}: off by {self.off:.1e}",
        }[self.verdict]
        many = f" over {self.steps} step{'s' * (self.steps > 1)}"
        said = f"{self.verdict}{many * (self.verdict != 'DIFFERENT')}{ending}"
        return textwrap.fill(f"{self.plan} ({self.optimizer}): {said}", WIDTH)


@dataclass(frozen=True, slots=True)
class Replay:
    """All runs of a certificate, and in what this machine is another. True where none differs."""

    model: str
    rows: tuple[Replayed, ...]
    other: tuple[str, ...]  # versions and hardware that are not those of the certificate

    @property
    def same(self) -> bool:
        return all(row.verdict != "DIFFERENT" for row in self.rows)

    def __bool__(self) -> bool:
        return self.same

    def to_dict(self) -> dict[str, Any]:
        """Everything in it, as JSON can hold it."""
        return {**asdict(self), "same": self.same}

    def __str__(self) -> str:
        remark = f"Made with another {'; '.join(self.other)}." if self.other else ALIKE
        return "\n".join([f"{self.model}: certificate replayed", *map(str, self.rows),
                          textwrap.fill(remark, WIDTH)])  # fmt: skip


ALIKE = "Made with the same versions on the same kind of machine."


def replay(certificate: Certificate, subject: Subject) -> Replay:
    """Take every run again and compare; a module that starts from other weights is refused."""
    if not certificate.runs:
        raise RecordError("certificate", "holds no run that could be replayed", "Write it again.")
    courses = [course_of(run, subject) for run in certificate.runs]
    ranks = max(course.plan.layout.num_ranks for course in courses)
    with untouched(torch.device("cpu")), Ranks(ranks) as pool:
        rows = [replay_run(pool, run, course) for run, course in zip(certificate.runs, courses)]
    return Replay(certificate.model, tuple(rows), other_than(certificate))


def course_of(run: CertifiedRun, subject: Subject) -> Course:
    try:
        return Course(subject, Plan.parse(run.plan), len(run.steps), run.device, run.asked)
    except PlanError as error:
        problem = f"this stepladder cannot read its plan '{run.plan}' ({error})"
        raise RecordError("certificate", problem, "Replay it with the one that wrote it.") from None


def replay_run(pool: Ranks, claim: CertifiedRun, course: Course) -> Replayed:
    found = record_run(pool, course, claim.verdict)
    check_start(claim.first, found.first)
    seen: Replayed | None = None
    for step in range(len(claim.steps)):
        # Each beside what is allowed: the one that is furthest over it is named.
        apart = {n: (off, limit(course.plan, n)) for n, off in apart_in(claim, found, step).items()}
        if not apart:
            continue
        name = max(apart, key=lambda name: excess(*apart[name]))
        off, allowed = apart[name]
        here = Replayed(
            claim.asked, claim.optimizer, "DIFFERENT", len(claim.steps), step, name, off
        )
        if not off <= allowed:
            return here
        seen = seen or replace(here, verdict="the same within tolerance")
    return seen or Replayed(claim.asked, claim.optimizer, "identical bits", len(claim.steps))


def limit(plan: Plan, name: str) -> float:
    """How far rounding may move the loss, or a parameter, of its way so far.

    Adam makes a whole step of a rounding where a gradient is all but zero: there losses judge.
    """
    work = narrowest(plan)
    if name == "loss":
        return TOLERANCES[work]
    return WAYS[work] if plan.optimizer.name == "sgd" and plan.optimizer.clip is None else math.inf


def excess(off: float, allowed: float) -> float:
    return math.inf if math.isnan(off) else off / allowed


def check_start(claim: Mapping[str, Fingerprint], found: Mapping[str, Fingerprint]) -> None:
    """Refuse a module that is not the one that was claim."""
    if claim.keys() != found.keys():
        name = min(claim.keys() ^ found.keys())
        problem = f"is of another module: '{name}' is in one of the two only"
        raise RecordError("certificate", problem, "Replay it with the module that was claim.")
    for name, one in claim.items():
        if one.hash != found[name].hash:
            problem = f"is of other first weights: '{name}' begins with other bits"
            raise RecordError(
                "certificate", problem, "Replay it with the weights and the data of that run."
            )


def apart_in(claim: CertifiedRun, found: CertifiedRun, step: int) -> dict[str, float]:
    """How far the loss and each tensor of other bits are away."""
    one, other = claim.steps[step], found.steps[step]
    # What is not a number equals itself: both runs broke down alike.
    same_loss = one.loss == other.loss or (math.isnan(one.loss) and math.isnan(other.loss))
    apart = {} if same_loss else {"loss": relative(one.loss, other.loss)}
    for name, expected in one.tensors.items():
        mine = other.tensors[name]
        if expected.hash != mine.hash:
            way = away(expected.sketch, claim.first[name].sketch)
            off = away(expected.sketch, mine.sketch)
            apart[name] = off / way if way else math.inf
    return apart


def away(one: Sequence[float], other: Sequence[float]) -> float:
    """About how far two tensors of these sketches are apart: a weight's mean square is one half."""
    return math.sqrt(2 * sum((a - b) ** 2 for a, b in zip(one, other)) / len(one))


def other_than(certificate: Certificate) -> tuple[str, ...]:
    """What is not the same here, as phrases."""
    here = made_with(certificate.runs[0].device)
    return tuple(
        f"{name} ({value}; here {here.get(name, 'none')})"
        for name, value in certificate.made_with.items()
        if here.get(name) != value
    )
