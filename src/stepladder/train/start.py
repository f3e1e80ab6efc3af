"""Starting a run: from what the user hands over to something that can take steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from stepladder.errors import ModelError, PlanError
from stepladder.hardware import recognise_device
from stepladder.loss import make_loss
from stepladder.model import find_anatomy, meta_copy
from stepladder.model.forward_state import state_restored
from stepladder.model.training_mode import kept_in_evaluation
from stepladder.plan import FP32, Batch, Optimizer, Plan, Rate, SettledPlan
from stepladder.plan.settled.settle import settle
from stepladder.rungs import BlockCost, LossScale, MemoryLimit, call, measure_blocks
from stepladder.rungs.climb import climb as climb_rungs
from stepladder.rungs.data_parallel.batch_norm import batch_norms, explain_batch_norm
from stepladder.rungs.precision.precision import device_limits, missing_packages
from stepladder.train.checkpointing.rank_state import check_state
from stepladder.train.health.nonfinite import Health
from stepladder.train.optimizer.build_optimizer import build_optimizer
from stepladder.train.optimizer.master_weights import masters_of_shards, take_masters
from stepladder.world import Place, World, device_memory_bytes, join_world, pick_device

from .auto_plan import Choice, can_compile, choose_plan, is_automatic
from .flop_rate import FlopRate
from .prepare_module import check_loss_module, prepare_module
from .run import Run
from .step_batch import as_batch
from .tuning.tuner import Tuner, make_tuner


def climb(
    model: nn.Module,
    *,
    loss: str | Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: str | Optimizer | None = None,
    plan: str | Plan = "auto",
    sample: Any = None,
    rate: str | Rate = "constant",
    seed: int = 0,
    device: str = "auto",
    nonfinite: str = "stop",
    exact: bool = False,
    timeout_seconds: float = 600,
) -> Run:
    """Take a module up the ladder: a run whose `step` learns from one global batch.

    Called on one process, or on every rank that torchrun started; the module is changed in place
    and keeps its class and parameter names.

    Args:
        loss: a name, a function of (outputs, targets) that is a mean over valid targets, or None
            for a module whose output holds its own. A loss that is a module is trained too where it
            has parameters; optimizer groups see them as "loss.NAME".
        optimizer: text such as "adamw lr=3e-4 clip=1"; replaces the plan's.
        plan: text such as "bf16 zero3 micro=4", a `Plan`, or "auto": what ran fastest in trials on
            copies of the module with the first batch. "auto tune=20" gives them so many seconds,
            "auto tune=off" none.
        sample: one batch, for the trials of "auto" (else the first step's is used); needed to fit
            a recomputation budget, and to weigh the stages of a pipeline where the module does not
            read tokens.
        rate: the learning-rate schedule, text such as "cosine warmup=100 steps=1000".
        seed: of dropout and every other random number that a step draws.
        device: "auto", "cpu" or "cuda".
        nonfinite: what happens after a loss or gradient that is NaN or Inf, whose update is always
            skipped: "stop" raises when a report is read (on several ranks, at the next step of
            those that do not read it), "skip" goes on, "backoff" goes on with half the learning
            rate.
        exact: only algorithms that give the same bits each time.
        timeout_seconds: how long ranks wait for each other before the missing one is named.

    >>> import torch, stepladder as sl
    >>> model = torch.nn.Linear(4, 2)
    >>> run = sl.climb(model, loss="cross_entropy", optimizer="adamw lr=3e-4", plan="fp32 micro=4")
    >>> report = run.step((torch.randn(8, 4), torch.randint(0, 2, (8,))))
    >>> report.step, report.tokens
    (0, 8)
    """
    health = Health(nonfinite)
    check_state(model)
    place = Place.from_environment()
    choice = (
        Choice(plan)
        if isinstance(plan, Plan)
        else choose_plan(plan, device, place, model=model, sample=sample)
    )
    if optimizer is not None:
        parsed = Optimizer.parse(optimizer) if isinstance(optimizer, str) else optimizer
        choice = replace(choice, plan=replace(choice.plan, optimizer=parsed))
    settled = settle_here(choice.plan, device, place)
    world = join_world(
        settled.layout, device, timeout_seconds=timeout_seconds, plan=str(settled.plan)
    )
    tuning = make_tuning(plan, world, device, loss, seed, exact=exact)
    if tuning is not None and sample is not None:
        choice = tuning.choose(choice, model, sample)
        settled = settle_here(choice.plan, device, place)
    run = build(
        model, settled, world,
        loss=loss, sample=sample, rate=rate, seed=seed,
        health=health, exact=exact, because=choice.because,
    )  # fmt: skip
    if tuning is not None:
        run.events += tuning.tuner.told
        run.retune = tuning.retune if sample is None else None
    return run


@dataclass(frozen=True, slots=True)
class Tuning:
    """Trials of plans for a run, before it is built or at its first step."""

    tuner: Tuner
    world: World
    device: str
    loss: Any
    seed: int

    def choose(self, choice: Choice, model: nn.Module, sample: Any) -> Choice:
        """The plan that ran fastest, with both reasons."""

        def make_run(module: nn.Module, loss: Any, plan: Plan) -> Run:
            return build(
                module, self.settle(plan), self.world,
                loss=loss, sample=sample, rate="constant", seed=self.seed,
                health=Health("skip"), exact=False, because="",
            )  # fmt: skip

        plan, because = self.tuner.choose(choice.plan, model, self.loss, sample, make_run)
        return Choice(plan, "; ".join(filter(None, (because, choice.because))))

    def settle(self, plan: Plan) -> SettledPlan:
        return settle_here(plan, self.device, self.world.place)

    def retune(self, run: Run, batch: Any) -> None:
        """Have a run that took no step yet go on with the plan that ran fastest."""
        if not is_unchanged(run.plan):
            run.because += "; other plans are tried where climb is given sample=batch"
            return
        own = run.own_batch(batch)  # in the width that the module has by now
        choice = self.choose(Choice(run.plan, run.because), run.module, own)
        run.events += self.tuner.told
        run.because = choice.because
        if choice.plan == run.plan:
            return
        settled, criterion = self.settle(choice.plan), make_loss(self.loss, run.module)
        again = climb_rungs(run.module, settled, criterion, run.world, None, run.seed)
        again.notes[:0] = run.events
        run.events = again.notes
        # The module is stored in float32 by now, whatever it was given in.
        run.climbed = replace(again, narrows=run.climbed.narrows)
        run.settled = settled


def is_unchanged(plan: Plan) -> bool:
    """Whether such a plan leaves a module as it was, so that another can be applied to it."""
    stored = plan.precision.store == "float32" and plan.precision.compute != "fp8"
    return stored and replace(plan, batch=Batch(), optimizer=Optimizer(), precision=FP32) == Plan()


def make_tuning(
    plan: str | Plan, world: World, device: str, loss: Any, seed: int, *, exact: bool
) -> Tuning | None:
    """Trials, where the plan is left to be chosen and there is something to try."""
    words = [] if isinstance(plan, Plan) else plan.split()
    if not is_automatic(words):
        return None
    tuner = make_tuner(
        words[1:],
        world.device,
        num_ranks=world.place.num_ranks,
        exact=exact,
        compiles=can_compile(world.device),
    )
    return Tuning(tuner, world, device, loss, seed) if tuner else None


def settle_here(plan: Plan, device: str, place: Place) -> SettledPlan:
    """The plan for the ranks there are and this one's device, or every problem it has with them.

    The batch stays open: a run learns from batches of any size.
    """
    here = device_limits(pick_device(device, place.local_rank))
    lacking = missing_packages(plan, here)
    return settle(plan, place.num_ranks, device=here, open_batch=True, also=lacking)


def build(
    model: nn.Module,
    settled: SettledPlan,
    world: World,
    *,
    loss: str | Callable[[Any, Any], torch.Tensor] | None,
    sample: Any,
    rate: str | Rate,
    seed: int,
    health: Health,
    exact: bool,
    because: str,
) -> Run:
    """The run of a settled plan in a joined world."""
    plan = settled.plan
    if plan.memory_bytes is not None:
        MemoryLimit(plan.memory_bytes, world.device).__enter__()  # for as long as the process lives
    prepare_module(model, settled, None if sample is None else as_batch(sample, 0))
    check_loss_module(loss)
    costs = measure_costs(model, settled, sample)
    drawn = copy_for_counting(model)
    # Before any rung: rounding comes first, and masters are what was rounded.
    masters = take_masters(model, loss) if settled.masters else None
    criterion, row = make_loss(loss, model), one_row(sample)
    climbed = climb_rungs(model, settled, criterion, world, costs, seed, row)
    owned = [(shard.name, shard.owned) for shard in climbed.shards]
    masters = masters_of_shards(climbed.shards, masters)
    return Run(
        settled=settled,
        world=world,
        climbed=climbed,
        events=climbed.notes,
        optimizer=build_optimizer(plan.optimizer, owned, climbed.anatomy.blocks, masters),
        scale=LossScale(
            world.device,
            enabled=plan.precision.scaled,
            ways=climbed.forward_backward.gradient_sync.ways,
        ),
        rate=Rate.parse(rate) if isinstance(rate, str) else rate,
        flops=FlopRate(
            drawn,
            peak_flops(plan, world.device),
            sharing=settled.layout.num_ranks // settled.data_ranks,
            again=climbed.fully_recomputed,
        ),
        seed=seed,
        health=health,
        exact=exact,
        evaluated=kept_in_evaluation(model),
        because="; ".join(filter(None, (because, explain_batch_norm(drawn, settled)))),
    )


def copy_for_counting(model: nn.Module) -> nn.Module:
    """A copy of the model on the meta device; an empty module where it cannot be copied."""
    try:
        return meta_copy(model)
    except ModelError:
        return nn.Module()


def one_row(sample: Any) -> Any:
    """The inputs of a sample's first row; None where no sample was given."""
    return None if sample is None else as_batch(sample, 0).rows(slice(0, 1)).inputs


def peak_flops(plan: Plan, device: torch.device) -> float | None:
    """The device's peak in the plan's compute type; None for a device nobody has looked up."""
    if device.type != "cuda":
        return None
    known = recognise_device(torch.cuda.get_device_name(device), device_memory_bytes(device))
    return known.peak(plan.precision.compute) if known else None


def measure_costs(
    model: nn.Module, settled: SettledPlan, sample: Any
) -> tuple[BlockCost, ...] | None:
    """What each block keeps for backward, from one forward of one row; only a budget asks."""
    recompute = settled.plan.recompute
    if recompute.kind != "budget":
        return None
    if sample is None:
        raise PlanError(
            "recompute",
            f"a budget ({recompute}) is fitted to a batch and none was given",
            "Pass sample=batch, or choose recompute=selective or recompute=blocks.",
        )
    batch = as_batch(sample, 0)
    blocks = find_anatomy(model).blocks_of(model)
    with state_restored(model):
        # Statistics of a batch need two rows.
        rows = min(batch.num_rows, 2) if batch_norms(model) else 1
        costs = measure_blocks(blocks, lambda: call(model, batch.rows(slice(0, rows)).inputs))
    times = settled.rows_per_micro_batch(batch.num_rows) / rows
    return tuple(cost.times(times) for cost in costs)
