"""Building a run from a settled plan in a joined world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from stepladder.data import Batch
from stepladder.errors import ModelError, PlanError
from stepladder.hardware import recognise_device
from stepladder.loss import make_loss
from stepladder.model import find_anatomy, meta_copy
from stepladder.model.call_module import call
from stepladder.model.forward_state import state_restored
from stepladder.model.huggingface.packed_documents import (
    accept_packed_documents,
    accepts_packed_documents,
)
from stepladder.model.training_mode import kept_in_evaluation
from stepladder.plan import Plan, SettledPlan
from stepladder.plan.settled.settle import settle
from stepladder.rungs import BlockCost, Climbed, LossScale, MemoryLimit, measure_blocks
from stepladder.rungs.climb import climb as climb_rungs
from stepladder.rungs.data_parallel.batch_norm import batch_norms, explain_batch_norm
from stepladder.rungs.data_parallel.broadcast_parameters import broadcast_parameters
from stepladder.rungs.precision.precision import device_limits, missing_packages
from stepladder.seam.modules import remove_own_hooks
from stepladder.train.checkpointing.attribute_state import AttributeState
from stepladder.train.health.frozen_parameters import frozen_parameters
from stepladder.train.health.nonfinite import Health
from stepladder.train.optimizer.build_optimizer import build_optimizer
from stepladder.train.optimizer.compact.backward_update import update_in_backward
from stepladder.train.optimizer.compact.make_compact import make_compact
from stepladder.train.optimizer.compact.masters import Masters
from stepladder.train.optimizer.given_optimizer import GivenOptimizer
from stepladder.train.optimizer.gradient_norm import measure_in_order, measure_norms
from stepladder.train.optimizer.muon.make_muon import Chosen, choose_matrices, make_muon
from stepladder.train.optimizer.optimizer_trial import check_trials
from stepladder.train.optimizer.read_given import check_groups
from stepladder.train.optimizer.schedules import make_scheduler, read_rate
from stepladder.train.optimizer.unsaved_state import explain_unsaved
from stepladder.train.reporting.compile_events import CompileEvents
from stepladder.train.reporting.step_clock import Clock
from stepladder.world import Place, World, device_memory_bytes, pick_device

from .flop_rate import FlopRate
from .module_inputs import ModuleInputs, arranged_sample
from .prepare_module import check_loss_module, prepare_module
from .run import Run


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
    rate: Any,
    seed: int,
    health: Health,
    because: str,
    given: GivenOptimizer | None = None,
) -> Run:
    """The run of a settled plan in a joined world; `given` is its optimizer where that is code."""
    plan, schedule = settled.plan, read_rate(rate)
    sample = arranged_sample(sample, model, loss)
    if given is not None:
        check_trials(given, settled)
    if plan.memory_bytes is not None:
        MemoryLimit(plan.memory_bytes, world.device).__enter__()  # for as long as the process lives
    said = prepare_module(model, settled, sample)
    check_loss_module(loss)
    check_groups(plan.optimizer, model, loss)
    costs = measure_costs(model, settled, sample)
    drawn, masters = copy_for_counting(model), take_masters(model, loss, settled, world)
    matrices = choose_matrices(plan.optimizer, model) if plan.optimizer.name == "muon" else None
    criterion, row = make_loss(loss, model), sample and sample.rows(slice(0, 1)).inputs
    climbed = climb_rungs(model, settled, criterion, world, costs, seed, row)
    climbed.notes.extend(said if world.is_rank_zero else [])
    optimizer = make_optimizer(settled, climbed, masters, given, matrices, seed)
    run = Run(
        settled=settled,
        world=world,
        climbed=climbed,
        held=AttributeState().begin(climbed),
        events=climbed.notes,
        optimizer=optimizer,
        scale=loss_scale(plan, climbed, world),
        rate=schedule,
        inputs=ModuleInputs.of(model, loss),
        scheduler=make_scheduler(rate, optimizer),
        flops=flop_rate(drawn, settled, world, climbed),
        seed=seed,
        health=health,
        frozen=frozen_parameters(climbed.module),
        evaluated=kept_in_evaluation(model),
        because="; ".join(filter(None, (because, explain_batch_norm(drawn, settled)))),
        measure=measure_in_order if settled.slices else measure_norms,
        clock=Clock(CompileEvents.of(bool(plan.compile))),
    )
    return update_in_backward(run) if settled.updates_in_backward else run


def flop_rate(drawn: nn.Module, settled: SettledPlan, world: World, climbed: Climbed) -> FlopRate:
    sharing = settled.layout.num_ranks // settled.data_ranks
    peak = peak_flops(settled.plan, world.device)
    return FlopRate(drawn, peak, sharing, climbed.fully_recomputed)


def take_masters(model: nn.Module, loss: Any, settled: SettledPlan, world: World) -> Masters | None:
    """Before any rung: rounding comes first, and masters are what was rounded."""
    if not settled.masters:
        return None
    broadcast_parameters(model, world)  # all ranks begin with those of the first
    return Masters.take(model, loss)


def loss_scale(plan: Plan, climbed: Climbed, world: World) -> LossScale:
    ways = climbed.forward_backward.gradient_sync.ways
    return LossScale(world.device, enabled=plan.precision.scaled, ways=ways)


def make_optimizer(
    settled: SettledPlan,
    climbed: Climbed,
    masters: Masters | None,
    given: GivenOptimizer | None,
    matrices: Chosen | None,
    seed: int,
) -> torch.optim.Optimizer:
    """The optimizer of what this rank owns, in words or as code."""
    plan = settled.plan
    if matrices is not None:
        return make_muon(matrices, climbed, settled, masters)
    if masters is not None and plan.state != 16:
        return make_compact(settled, climbed, masters.of(climbed.shards), seed)
    if given is None:
        owned = [(shard.name, shard.owned) for shard in climbed.shards]
        kept = None if masters is None else masters.of(climbed.shards)
        fused = not plan.exact.slices
        return build_optimizer(plan.optimizer, owned, climbed.anatomy.blocks, kept, fused=fused)
    first = climbed.shared.first_names
    shards = {first.get(shard.name, shard.name): shard for shard in climbed.shards}
    optimizer = given.build(shards, plan.optimizer.lr)
    if plan.exact.slices and any(group.get("fused") for group in optimizer.param_groups):
        problem = f"{given.name} is fused, and its kernel rounds a shard otherwise than the whole"
        raise PlanError("optimizer", problem, "Leave fused=True or exact=ranks out.")
    updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
    climbed.notes.extend(explain_unsaved(given))
    left = [name for name, shard in shards.items() if id(shard.owned) not in updated]
    if left:
        climbed.notes.append(
            f"{given.name} leaves out {len(left)} trainable parameters, such as '{left[0]}': "
            "they stay as they are"
        )
    return optimizer


def copy_for_counting(model: nn.Module) -> nn.Module:
    """A copy of the model on the meta device; an empty module where it cannot be copied.

    Without the user's hooks: what they keep of a pass would have no numbers.
    """
    try:
        copied = meta_copy(model)
    except ModelError:
        return nn.Module()
    remove_own_hooks(copied)
    return accept_packed_documents(copied) if accepts_packed_documents(model) else copied


def peak_flops(plan: Plan, device: torch.device) -> float | None:
    """The device's peak in the plan's compute type; None for a device nobody has looked up."""
    if device.type != "cuda":
        return None
    known = recognise_device(torch.cuda.get_device_name(device), device_memory_bytes(device))
    return known.peak(plan.precision.compute) if known else None


def measure_costs(
    model: nn.Module, settled: SettledPlan, batch: Batch | None
) -> tuple[BlockCost, ...] | None:
    """What each block keeps for backward, from one forward of one row; only a budget asks."""
    recompute = settled.plan.recompute
    if recompute.kind != "budget":
        return None
    if batch is None:
        raise PlanError(
            "recompute",
            f"a budget ({recompute}) is fitted to a batch and none was given",
            "Give climb sample=batch, or choose recompute=selective or recompute=blocks.",
        )
    blocks = find_anatomy(model).blocks_of(model)
    with state_restored(model):
        # Statistics of a batch need two rows.
        rows = min(batch.num_rows, 2) if batch_norms(model) else 1
        costs = measure_blocks(blocks, lambda: call(model, batch.rows(slice(0, rows)).inputs))
    times = settled.rows_per_micro_batch(batch.num_rows) / rows
    return tuple(cost.times(times) for cost in costs)
