"""Whether a run that was killed and resumed is the run that was never stopped.

One run takes its steps undisturbed. Another takes the same, and in the step after the one that
followed a save, between two passes of it, its last rank is killed with SIGKILL. New
processes go on from what was saved, in the same plan or in another one, as often as asked for.

On the same ranks everything must be the same to the last bit: every loss, the rows of every batch,
what was drawn from every random generator, every parameter, the optimizer's state, the loss scale.
In another layout sums have another order and dropout other draws, so dropout is turned off and
losses may differ by rounding; the rows and their order must still be the same.

A mistake that both runs make would go unseen, so a plain torch loop takes the same steps, unless
the module draws random numbers or says that its results depend on the plan.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepladder.checkpoint import as_bytes
from stepladder.data import Batch, SampleOrder, load_batch
from stepladder.errors import PlanError, StepladderError
from stepladder.launch import Ranks
from stepladder.plan import Optimizer, Plan
from stepladder.train import Run, climb
from stepladder.train.batch_rows import rows_of

from .check_plans import check_plans
from .course import DEPENDS, MICRO, ROWS, Course, fill_batch, laid_out, named_optimizer
from .reference import plain_losses
from .resume_verdict import Kept, Resumption, judge, read_notes
from .subjects import Subject

RESUMED = "adamw lr=1e-2 clip=1"  # moments that were lost show in the next step
STEPS_OF_A_LEG = 4  # two before a save, one after it, and the one that is killed


@dataclass(frozen=True, slots=True)
class Journey:
    """One undisturbed run and its double: the plans of its legs, each but the last one killed."""

    subject: Subject
    plans: tuple[Plan, ...]  # settled, with their optimizer
    steps: int
    seed: int = 0
    data_seed: int = 0
    rate: str = "constant"
    workers: str = "2"  # that read ahead
    device: str = "cpu"
    name: str = ""  # the plans as they were asked for

    @property
    def exact(self) -> bool:
        """Whether every leg has the same ranks in the same places."""
        return len(set(self.plans)) == 1

    @property
    def saves(self) -> tuple[int, ...]:
        """Steps after which every run saves, the one that is never stopped too."""
        legs = len(self.plans)
        return tuple(self.steps * leg // legs for leg in range(1, legs))


@dataclass(frozen=True, slots=True)
class Leg:
    """What one set of processes does of a journey."""

    journey: Journey
    index: int
    folder: Path  # of checkpoints
    notes: Path  # a file a rank
    dies: bool = True  # where another leg comes after it

    @property
    def plan(self) -> Plan:
        return self.journey.plans[self.index]

    @property
    def resumes(self) -> bool:
        return self.index > 0

    @property
    def killed_in(self) -> int | None:
        """The step that is never finished: one lies between it and the save."""
        last = self.index == len(self.journey.plans) - 1
        return None if last or not self.dies else self.journey.saves[self.index] + 1


def make_journey(
    subject: Subject,
    plans: Sequence[Plan],
    *,
    optimizer: str | Optimizer = RESUMED,
    steps: int = 2 * STEPS_OF_A_LEG,
    seed: int = 0,
    data_seed: int = 0,
    rate: str = "constant",
    workers: str = "2",
    device: str = "cpu",
) -> Journey:
    """A journey from plans of which some numbers may be open; one plan is resumed in itself."""
    asked = [*plans, plans[0]] if len(plans) == 1 else list(plans)
    if steps < STEPS_OF_A_LEG * len(asked):
        raise PlanError(
            "steps",
            f"{steps} are too few to save, go on, be killed and resume {len(asked) - 1} times",
            f"Use {STEPS_OF_A_LEG * len(asked)} or more.",
        )
    chosen = named_optimizer(asked) or optimizer
    chosen = Optimizer.parse(chosen) if isinstance(chosen, str) else chosen
    spread = [replace(plan, layout=laid_out(plan.layout)) for plan in asked]
    rows = shared_rows(spread)
    whole = tuple(replace(plan, batch=fill_batch(plan, rows), optimizer=chosen) for plan in spread)
    name = " → ".join(dict.fromkeys(map(str, spread)))
    return Journey(subject, whole, steps, seed, data_seed, rate, workers, device, name)


def shared_rows(plans: Sequence[Plan]) -> int:
    """Rows of a global batch that all of these plans can share; as the first says, if it does."""
    first = plans[0]
    each = [plan.exact.slices or (plan.batch.micro or MICRO) * plan.layout.data_ranks
            for plan in plans]  # fmt: skip
    if first.batch.sequences or first.batch.micro_batches:
        return first.batch.sequences or each[0] * (first.batch.micro_batches or 1)
    fits = math.lcm(*each)
    return fits * max(1, -(-ROWS // fits))


def check_journeys(journeys: Sequence[Journey]) -> None:
    """Raise what makes any leg of any of them impossible, before a rank is started."""
    plans = [plan for journey in journeys for plan in journey.plans]
    for journey in journeys[:1]:  # all are of one subject, on one kind of device
        check_plans(journey.subject, plans, journey.device)


def compare_journeys(
    journeys: Sequence[Journey], travel: Callable[[Leg], None] | None = None
) -> Iterator[Resumption]:
    """One finding a journey, as each is done; one that cannot begin says why."""
    ranks = max(plan.layout.num_ranks for journey in journeys for plan in journey.plans)
    with Ranks(ranks) as pool:
        for journey in journeys:
            with tempfile.TemporaryDirectory(prefix="resume-") as folder:
                yield compare_journey(pool, journey, Path(folder), travel or travel_leg)


def compare_journey(
    pool: Ranks, journey: Journey, folder: Path, travel: Callable[[Leg], None]
) -> Resumption:
    """Run undisturbed, run again killed and resumed, and hold one against the other."""
    ranks = tuple(plan.layout.num_ranks for plan in journey.plans)
    shown = Resumption(journey.name, ranks, journey.exact)
    straight = Leg(journey, 0, folder / "straight", folder / "undisturbed", dies=False)
    try:
        pool.call(travel, straight, ranks=ranks[0])
        for index in range(len(ranks)):
            leg = Leg(journey, index, folder / "run", folder / f"{index}")
            run_leg(pool, travel, leg)
    except Exception as error:  # of a module nobody has seen: one journey's end is not the others'
        ours = isinstance(error, StepladderError)
        problem = str(error) if ours else f"{type(error).__name__}: {error}"
        return replace(shown, problem=problem.splitlines()[0], refused=ours)
    expected = Kept(read_notes(straight.notes), straight.folder)
    legs = [read_notes(folder / f"{index}") for index in range(len(ranks))]
    plain = follow_plainly(journey, expected)
    return judge(shown, journey.plans, expected, legs, folder / "run", plain)


def follow_plainly(journey: Journey, expected: Kept) -> tuple[float, ...] | None:
    """Losses of a plain torch loop on the same batches, where it can be expected to follow."""
    plan = journey.plans[0]
    said = [line for notes in expected.notes.values() for note in notes for line in note["said"]]
    if said or journey.rate != "constant" or plan.precision.compute == "fp8":
        return None
    course = Course(journey.subject, plan, journey.steps, journey.device)
    return plain_losses(course, journey.data_seed)


def run_leg(pool: Ranks, travel: Callable[[Leg], None], leg: Leg) -> None:
    """Let a leg run to its end, which for one that saves on the way is to be killed."""
    try:
        pool.call(travel, leg, ranks=leg.plan.layout.num_ranks)
    except StepladderError:
        if not killed(leg).exists():
            raise
        pool.restart()  # nothing of what ran before is left in new ones


def killed(leg: Leg) -> Path:
    """What a rank leaves behind just before it is killed."""
    return leg.notes / "killed"


def travel_leg(leg: Leg) -> None:
    """One rank's part of a leg."""
    run, samples = start(leg)
    if leg.resumes:
        run.load(leg.folder)
    rank = run.world.place.rank
    doom = leg.killed_in if rank == run.world.layout.num_ranks - 1 else None
    if doom is not None:
        kill_within(run, leg, doom)
    leg.notes.mkdir(parents=True, exist_ok=True)
    how = leg.journey
    feed = run.batches(samples, leg.plan.batch.sequences, how.data_seed, workers=how.workers)
    with feed, (leg.notes / f"{rank:05d}.jsonl").open("w") as notes:
        while run.index < how.steps:
            notes.write(json.dumps(take_step(run, next(feed))) + "\n")
            notes.flush()
            if run.index in how.saves:
                run.save(leg.folder, wait=False)
            elif run.index == doom:
                run.finish_saving()  # so that it is known from where the next leg goes on
            elif doom is not None and run.index > doom:
                kill(leg)  # a plan that runs its passes in one call is killed after them
    run.save(leg.folder)


def start(leg: Leg) -> tuple[Run, Any]:
    module, samples, loss = leg.journey.subject.made()
    micro, how = leg.plan.batch.micro or 1, leg.journey
    sample = load_batch(samples, SampleOrder(len(samples)), np.arange(micro))
    run = climb(
        module, loss=loss, plan=leg.plan, sample=sample, rate=how.rate, seed=how.seed,
        device=how.device, exact=how.device != "cpu",
    )  # fmt: skip
    if not leg.resumes:  # one that resumes has every generator where its process began
        random.seed(how.seed)
        np.random.seed(how.seed)
    return run, samples


def take_step(run: Run, batch: Batch) -> dict[str, Any]:
    """What one step was given, drew and came to."""
    report = run.step(batch)
    return {
        "step": report.step,
        "loss": str(report.loss),  # JSON has no word for what is not a number
        "scale": report.loss_scale,
        "drawn": [random.random(), float(np.random.random())],  # as a transform may draw
        "rows": rows_fed(run, batch),
        "said": [line for line in (run.because, *run.events) if DEPENDS in line],
    }


def rows_fed(run: Run, batch: Batch) -> dict[int, str]:
    """A digest of every row this rank was given, by its position in the run."""
    rows = rows_of(run.plan, batch.size, run.world.data_index)
    tensors = [tensor.detach().cpu() for tensor in batch.tensors() if tensor.dim()]
    return {
        batch.position + int(row): digest([tensor[index] for tensor in tensors])
        for index, row in enumerate(rows)
    }


def digest(tensors: Sequence[torch.Tensor]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        found.update(as_bytes(tensor).numpy().tobytes())
    return found.hexdigest()


def kill_within(run: Run, leg: Leg, step: int) -> None:
    """Have the process killed between two passes, with gradients of the first ones added up."""
    scaled, last = run.scale.scaled, (leg.plan.batch.micro_batches or 1) // 2
    taken = 0

    def counted(loss: torch.Tensor) -> torch.Tensor:
        nonlocal taken
        if run.index == step:
            if taken == last:
                kill(leg)
            taken += 1
        return scaled(loss)

    run.scale.scaled = counted  # type: ignore[method-assign]


def kill(leg: Leg) -> None:
    killed(leg).touch()
    os.kill(os.getpid(), signal.SIGKILL)
