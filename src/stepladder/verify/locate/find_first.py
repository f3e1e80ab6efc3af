"""The search: both runs again, every tensor compared, and the first that differs by too much.

A tensor differs where its distance from the reference's is more than a multiple of the largest
distance that one rounding in every layer made in several runs of the reference itself. A number
near zero may go to the other side of a ReLU, or a token to another expert, by a rounding of just
the right sign, which a few draws can miss; so whatever differs is judged once more with many draws
before it is reported.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from stepladder.errors import PlanError, StepladderError
from stepladder.launch import Ranks
from stepladder.plan import Plan
from stepladder.train.checkpointing.rng_state import untouched
from stepladder.verify.course import Course
from stepladder.verify.parity_verdict import narrowest

from .compare import Finding
from .difference import NEAR, Difference, Inputs, Location
from .rank_steps import RankFindings, compare_rank
from .reference_steps import Expected, add_noise, record_reference
from .sites import Site

DRAWS, MORE_DRAWS = 3, 12  # runs with noise: always, and before a difference is reported
MULTIPLE = 8.0  # of the noise
FEW = 3.0  # a tensor of n numbers is allowed 1 + FEW / n as much: few numbers may be near by chance
ROUNDINGS = 4.0  # of the tensor's own norm, for what no noise reaches
NEGLIGIBLE = 1e-3  # of the largest norm of its kind: what is smaller is judged as if it had that
TF32 = 2.0**-10
Watch = Callable[[Course, Path], RankFindings]
RANDOM = "the module draws random numbers, which no two runs share"


def locate(courses: Sequence[Course]) -> list[Location]:
    """One location for each course, all on the same processes."""
    ranks = max((course.plan.layout.num_ranks for course in courses), default=1)
    with untouched(torch.device("cpu")), Ranks(ranks) as pool:
        return [locate_course(pool, course) for course in courses]


def locate_course(pool: Ranks, course: Course, watch: Watch = compare_rank) -> Location:
    """Run the plain loop here and the plan on its ranks; a plan that is refused says why.

    Args:
        watch: what each rank does.
    """
    plan = course.plan
    try:
        refuse_own_reference(plan)
        with tempfile.TemporaryDirectory(prefix="locate-") as name:
            folder = Path(name)
            expected = record_reference(course, folder)
            found = pool.call(watch, course, folder, ranks=plan.layout.num_ranks)
            search = Search(course, expected, found, rounding_of(plan))
            return search.judged(folder)
    except Exception as error:  # of a module nobody has seen: one plan's end is not the others'
        ours = isinstance(error, StepladderError)
        problem = str(error) if ours else f"{type(error).__name__}: {error}"
        return Location(course.name, str(plan.optimizer), None, problem=problem.splitlines()[0])


def refuse_own_reference(plan: Plan) -> None:
    if plan.precision.compute == "fp8":
        raise PlanError(
            "precision",
            "fp8 has no plain torch loop whose layers could be compared",
            "Locate the difference in bf16, or see 'verify precision'.",
        )


def rounding_of(plan: Plan) -> float:
    """The unit in the last place of the numbers that a plan works with."""
    if plan.precision.compute == "tf32":
        return TF32
    return torch.finfo(getattr(torch, narrowest(plan))).eps


@dataclass(slots=True)
class Search:
    """All findings of all ranks beside what was expected."""

    course: Course
    expected: Expected
    found: Sequence[RankFindings]
    rounding: float
    left_out: dict[Site, str] = field(init=False)

    def __post_init__(self) -> None:
        self.left_out = {site: why for rank in self.found for site, why in rank.left_out.items()}
        shown = {f.site for rank in self.found for step in rank.steps for f in step}
        hidden = [site for site in self.expected.orders[0] if site not in shown]
        for site in hidden:
            self.left_out.setdefault(site, "no rank computes it by itself")

    def judged(self, folder: Path) -> Location:
        steps = self.course.steps
        self.add_noise(folder, range(1, DRAWS + 1), steps)
        first = self.first()
        if first is not None:
            more = range(DRAWS + 1, DRAWS + MORE_DRAWS + 1)
            self.add_noise(folder, more, first[0] + 1)
            first = self.first(first[0] + 1)
            if first is None:  # explained after all; what comes later is not yet
                self.add_noise(folder, more, steps)
                first = self.first()
        every = [f for rank in self.found for step in rank.steps for f in step if self.counts(f)]
        left_out = {str(site): why for site, why in self.left_out.items()}
        if self.expected.draws:
            left_out["random numbers"] = RANDOM
        return Location(
            self.course.name,
            str(self.course.plan.optimizer),
            None if first is None else self.described(*first),
            len(every),
            sum(f.same_bits for f in every),
            left_out,
        )

    def add_noise(self, folder: Path, draws: Iterable[int], steps: int) -> None:
        course = replace(self.course, steps=steps)
        add_noise(course, folder, self.expected, self.rounding, draws)

    def counts(self, finding: Finding) -> bool:
        """Whether a site is compared on every rank, in every micro-batch that has it."""
        return finding.site not in self.left_out

    def first(self, steps: int | None = None) -> tuple[int, int, Finding] | None:
        """The step, the rank and the finding that comes first in order of computing."""
        for step in range(len(self.expected.orders))[:steps]:
            differ = [
                (rank, finding)
                for rank, found in enumerate(self.found)
                for finding in found.steps[step]
                if self.counts(finding) and not finding.distance <= self.allowed(step, finding)
            ]
            if differ:
                rank, finding = min(differ, key=lambda one: self.place(step, *one))
                return step, rank, finding
        return None

    def place(self, step: int, rank: int, finding: Finding) -> tuple[int, int, int, int]:
        site = finding.site
        return site.phase, self.expected.orders[step][site], finding.micro or 0, rank

    def allowed(self, step: int, finding: Finding) -> float:
        """How far rounding may have moved a tensor."""
        if finding.same_bits:
            return 0.0
        site = finding.site
        norms = self.expected.norms[step]
        largest = max(norm for other, norm in norms.items() if other.kind == site.kind)
        norm = finding.norm + NEGLIGIBLE * largest
        unit = torch.finfo(torch.float32).eps if self.is_stored_wide(site) else self.rounding
        multiple = MULTIPLE * (1 + FEW / max(self.expected.sizes[site], 1))
        return multiple * self.expected.noise[step][site] + ROUNDINGS * unit * norm

    def is_stored_wide(self, site: Site) -> bool:
        """Whether a parameter has more digits than the work: else a wrong update would hide."""
        return site.kind == "parameter" and self.course.plan.precision.store == "float32"

    def described(self, step: int, rank: int, finding: Finding) -> Difference:
        site, allowed = finding.site, self.allowed(step, finding)
        norm = finding.norm or 1.0
        of_kind = {
            f.site: not f.distance <= self.allowed(step, f)
            for found in self.found
            for f in sorted(found.steps[step], key=lambda f: f.distance)
            if f.site.kind == site.kind and self.counts(f)
        }
        several = self.expected.sizes[site] > 1  # one number is always some multiple of another
        scaled = several and not finding.unscaled > max(NEAR * finding.distance, allowed)
        return Difference(
            self.course.name,
            step,
            site.kind,
            self.suspect(step, rank, finding),
            str(site),
            finding.micro,
            None if site.kind == "loss" else rank,
            finding.distance / norm,
            allowed / norm,
            self.inputs(step, rank, finding),
            finding.factor if scaled and abs(finding.factor - 1) > allowed / norm else None,
            sum(of_kind.values()),
            len(of_kind),
            tuple(dict.fromkeys(line for found in self.found for line in found.said)),
        )

    def suspect(self, step: int, rank: int, finding: Finding) -> str:
        """The module whose code computes a tensor: of an input it is the caller, of an output's
        gradient whoever was given that output.

        Where modules around it return the output as it is, the first of them whose gradient is
        right has what made it wrong.
        """
        site = finding.site
        if site.kind == "input":
            return self.expected.callers.get((site.name, site.call), "")
        if site.kind == "output gradient":
            while around := self.expected.returned.get(site._replace(kind="output")):
                site = around._replace(kind="output gradient")
                if self.is_right(step, rank, site, finding.micro):
                    return site.name
            taker = self.expected.takers.get(site._replace(kind="output"))
            caller = self.expected.callers.get((site.name, site.call), "")
            return caller if taker is None else taker
        return "loss" if site.kind == "loss" else site.module

    def is_right(self, step: int, rank: int, site: Site, micro: int | None) -> bool:
        """Whether a tensor was compared and does not differ."""
        compared = (f for f in self.found[rank].steps[step] if (f.site, f.micro) == (site, micro))
        return any(self.counts(f) and f.distance <= self.allowed(step, f) for f in compared)

    def inputs(self, step: int, rank: int, finding: Finding) -> Inputs:
        """What of the tensors that it is computed from is known."""
        site = finding.site
        ranks = self.found if site.kind == "loss" else [self.found[rank]]
        near = {
            "output": lambda f: f.site[1:3] == site[1:3] and f.site.kind == "input",
            "input": lambda f: f.site.phase == 0 and self.precedes(step, f.site, site),
            "loss": lambda f: f.site[:2] == ("output", ""),
            "output gradient": lambda f: f.site.phase < 2 or self.precedes(step, f.site, site),
            "gradient": lambda f: f.site.module == site.module and f.site.phase in (0, 2),
            "optimizer state": lambda f: f.site == ("gradient", site.name, 0, ""),
            "parameter": lambda f: f.site.phase in (3, 4) and f.site.name == site.name,
            "buffer": lambda f: f.site.module == site.module and f.site.phase == 0,
        }[site.kind]
        found = [
            f for one in ranks for f in one.steps[step]
            if near(f) and self.counts(f) and finding.micro in (None, f.micro)
        ]  # fmt: skip
        if any(not f.distance <= self.allowed(step, f) for f in found):
            return "different"
        if not found:
            return "not compared"
        return "the same bits" if all(f.same_bits for f in found) else "the same but for rounding"

    def precedes(self, step: int, one: Site, other: Site) -> bool:
        order = self.expected.orders[step]
        return one.kind == other.kind and order[one] < order[other]
