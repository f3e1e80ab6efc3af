"""Where a run meets its tuner: before it is built, or at its first step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from stepladder.loss import make_loss
from stepladder.plan import FP32, BatchSplit, Layout, Optimizer, Plan, SettledPlan
from stepladder.plan.automatic import is_automatic
from stepladder.plan.options import Compress
from stepladder.rungs.climb import climb as climb_rungs
from stepladder.train.build_run import build, settle_here
from stepladder.train.health.nonfinite import Health
from stepladder.train.optimizer.given_optimizer import GivenOptimizer
from stepladder.train.prepare_module import prepare_module
from stepladder.train.reporting.compile_events import CompileEvents
from stepladder.train.run import Run
from stepladder.train.step_batch import as_batch
from stepladder.world import Place, World
from stepladder.world.seed import fix_library_algorithms

from .auto_plan import Choice, can_compile
from .candidates import fuses_head
from .rank_plan import agree
from .tuner import Tuner, make_tuner


@dataclass(frozen=True, slots=True)
class Tuning:
    """Trials of plans for a run, before it is built or at its first step."""

    tuner: Tuner
    world: World
    device: str
    loss: Any
    seed: int
    given: GivenOptimizer | None = None  # the optimizer, where it is code

    def choose(self, choice: Choice, model: nn.Module, sample: Any) -> Choice:
        """The plan that ran fastest, with both reasons.

        Several ranks try plans each by itself, with its own rows and without sending anything, and
        take what the first one found.
        """
        # Lazy parameters are made first: what has no shape yet cannot be copied or named.
        prepare_module(model, self.settle(choice.plan), as_batch(sample, 0))

        def make_run(module: nn.Module, loss: Any, plan: Plan) -> Run:
            return build(
                module, settle_here(plan, self.device, self.alone.place), self.alone,
                loss=loss, sample=sample, rate="constant", seed=self.seed,
                health=Health("skip"), because="",
                given=self.given.for_trial() if self.given else None,
            )  # fmt: skip

        plan, because = self.tuner.choose(
            by_itself(choice.plan) if self.several else choice.plan,
            model, self.loss, sample, make_run,
            fuses_head=lambda: fuses_head(
                model, make_loss(self.loss, model), self.settle(choice.plan)
            ),
        )  # fmt: skip
        if self.several:
            found = replace(choice.plan, compile=plan.compile, kernels=plan.kernels)
            plan, because = agree(found, f"on one rank's rows, {because}")
            plan = replace(plan, optimizer=choice.plan.optimizer)
        return Choice(plan, "; ".join(filter(None, (because, choice.because))))

    @property
    def several(self) -> bool:
        return self.world.place.num_ranks > 1

    @property
    def alone(self) -> World:
        """The world of a trial."""
        return World(Place(), self.world.device) if self.several else self.world

    def settle(self, plan: Plan) -> SettledPlan:
        return settle_here(plan, self.device, self.world.place)

    def hand_over(self, run: Run, *, at_first_step: bool) -> None:
        """Tell a run that was just built what was tried, or have it tried when it has a batch."""
        run.events += self.tuner.events
        run.tuned_seconds = self.tuner.step_seconds
        run.retune = self.retune if at_first_step else None

    def retune(self, run: Run, batch: Any) -> None:
        """Have a run that took no step yet go on with the plan that ran fastest."""
        if not is_unchanged(run.plan):
            run.because += "; other plans are tried where climb is given sample=batch"
            return
        own = run.own_batch(batch)  # in the width that the module has by now
        choice = self.choose(Choice(run.plan, run.because), run.module, own)
        run.events += self.tuner.events
        run.because, run.tuned_seconds = choice.because, self.tuner.step_seconds
        if choice.plan == run.plan:
            return
        settled, criterion = self.settle(choice.plan), make_loss(self.loss, run.module)
        again = climb_rungs(run.module, settled, criterion, run.world, None, run.seed)
        again.notes[:0] = run.events
        run.events = again.notes
        # The module is stored in float32 by now, whatever it was given in.
        run.climbed = replace(again, narrows=run.climbed.narrows)
        run.settled = settled
        run.clock.compiler = CompileEvents.of(bool(settled.plan.compile))


def by_itself(plan: Plan) -> Plan:
    """What one rank computes of a plan whose ranks have whole copies."""
    batch = BatchSplit(micro=plan.batch.micro)
    return replace(plan, layout=Layout(), zero=0, compress=Compress(), batch=batch)


def is_unchanged(plan: Plan) -> bool:
    """Whether such a plan leaves a module as it was, so that another can be applied to it."""
    stored = plan.precision.store == "float32" and plan.precision.compute != "fp8"
    return (
        stored
        and replace(plan, batch=BatchSplit(), optimizer=Optimizer(), precision=FP32) == Plan()
    )


def make_tuning(
    plan: str | Plan,
    world: World,
    device: str,
    loss: Any,
    seed: int,
    *,
    settled: SettledPlan,
    given: GivenOptimizer | None,
) -> Tuning | None:
    """Trials, where the plan is left to be chosen and there is something to try."""
    words = [] if isinstance(plan, Plan) else plan.split()
    if not is_automatic(words):
        return None
    tuner = make_tuner(
        words[1:],
        world.device,
        place=world.place,
        whole=settled.whole_on_every_rank,
        exact=settled.plan.exact.runs,
        compiles=can_compile(world.device),
    )
    if tuner is None:
        return None
    if world.device.type == "cuda":
        fix_library_algorithms()  # before their first use: deterministic algorithms may be chosen
    return Tuning(tuner, world, device, loss, seed, given)
