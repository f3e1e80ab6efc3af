"""What is done when memory runs out in the middle of a step: let go, shrink, or say who held it.

[Note: memory that ran out on one rank] The others wait for it in a collective, which can neither
be joined half-way nor left. So the rank leaves a note that all agree on and ends the others' wait:
each raises the same error, or is ended by its watch with the same sentence, within seconds. No
parameter changed. Whoever started the ranks starts them again, and they go on from the last
checkpoint with the micro-batch that the note names: same global batch, same mathematics.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from stepladder.data import Batch
from stepladder.errors import OutOfMemory, RankOutOfMemory
from stepladder.plan import Plan
from stepladder.planner.out_of_memory_advice import explain_out_of_memory
from stepladder.planner.remedies import Remedy, find_remedies
from stepladder.record import Memory, Rehearsal, load_calibration
from stepladder.record.rehearsal import RehearsedChange
from stepladder.rungs import ParameterShard
from stepladder.services import service
from stepladder.train.tuning.planner_inputs import cluster_for, facts_for
from stepladder.world import World, device_memory_bytes, peak_memory_bytes

GIB = 2**30
NOTE, NOTE_SECONDS = "out of memory", 60
REHEARSAL_SECONDS = 20.0  # from which on no further change is rehearsed
REHEARSED = ContextVar("rehearsed", default=True)


def drop_gradients(shards: Iterable[ParameterShard]) -> None:
    for shard in shards:
        shard.drop_gradient()


def release(shards: Iterable[ParameterShard], device: torch.device) -> None:
    """Drop what the failed try left: its gradients and its activations."""
    drop_gradients(shards)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def memory_in_use(
    module: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device, limit: int
) -> Memory:
    """Who held what when memory ran out: the state is counted, the rest were activations.

    The allocation that failed was never made, so the need is more than the peak: at least `limit`.
    """
    parameters = list(module.parameters())
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    owners = {
        "parameters": size(parameters),
        "gradients": size(p.grad for p in parameters if p.grad is not None),
        "optimizer": size(value for value in state if isinstance(value, torch.Tensor)),
    }
    rest = max(peak_memory_bytes(device), limit) - sum(owners.values())
    return Memory(**owners, activations=max(rest, 0))


def explain_failure(engine: Any, held: Memory, limit: int, batch: Batch) -> OutOfMemory:
    """What to change of the plan as it failed last, with the micro-batch that it came down to.

    Changes are forecast where this rank is alone: of several, the others wait to be told.
    """
    plan, rows = engine.plan, batch.num_rows
    cut = replace(plan.batch, micro=min(engine.micro or rows, rows), micro_batches=None)
    failed = replace(plan, batch=cut)
    remedies: list[Remedy] = []
    rehearsed, changes = None, list[RehearsedChange]()
    if engine.settled.one_rank:
        sized = replace(failed, batch=replace(cut, sequences=rows), memory_bytes=limit)
        remedies = forecast_remedies(engine.flops.module, sized, engine.world, batch)
        rehearsed, changes = rehearse_failure(engine, sized, remedies, batch, limit)
    blocks = len(engine.climbed.anatomy.blocks) or None
    return explain_out_of_memory(
        held, limit, failed, num_blocks=blocks, remedies=remedies, rehearsed=rehearsed,
        changes=changes,
    )  # fmt: skip


@contextmanager
def without_rehearsal() -> Iterator[None]:
    """A block in which a failure is explained by what was measured: of a trial nobody reads it."""
    token = REHEARSED.set(False)
    try:
        yield
    finally:
        REHEARSED.reset(token)


def rehearse_failure(
    engine: Any, plan: Plan, remedies: list[Remedy], batch: Batch, limit: int
) -> tuple[Rehearsal | None, list[RehearsedChange]]:
    """The step that failed, by itself and with changes; nothing where it cannot be rehearsed."""
    if not REHEARSED.get():
        return None, []
    known, device = engine.climbed.forward_backward.loss, engine.world.device.type
    losses = {"cross_entropy": "cross_entropy", "own": None}
    changes = [
        (each.words, each.case.plan)
        for each in remedies
        if "offload" not in each.kinds and each.case.cluster.num_devices == 1
    ]
    context = remedies[0].forecast.memory.context if remedies else 0
    try:
        rehearse = service("rehearse_failure")
        with without_rehearsal():  # the rehearsed step may fail like the one that it explains
            found: tuple[Rehearsal, list[RehearsedChange]] = rehearse(
                engine.flops.module, plan, changes, sample=batch, device=device,
                loss=losses.get(known.kind, known.function), limit_bytes=limit - context,
                seconds=REHEARSAL_SECONDS,
            )  # fmt: skip
            return found
    except Exception:  # a foreign module may do anything, and memory may run out again
        return None, []


def explain_evaluation(engine: Any, batch: Batch) -> OutOfMemory:
    """What to do where an evaluation found no memory; of several ranks, all are told."""
    world, rows = engine.world, batch.num_rows
    now = min(engine.micro or rows, rows)
    limit = engine.plan.memory_bytes or device_memory_bytes(world.device)
    held = memory_in_use(engine.module, engine.optimizer, world.device, limit)
    state = held.parameters + held.gradients + held.optimizer
    half = (now + 1) // 2
    fewer = f"Give batches of {half} rows, or micro={half} in the plan."
    short = OutOfMemory(
        "memory",
        f"an evaluation ran out of it with {now} row{'s' * (now > 1)} in a pass: the device has "
        f"{limit / GIB:.1f} GiB, of which the training state holds {state / GIB:.1f}",
        fewer if now > 1 else "Shard the state, such as zero3, or use a device with more.",
    )
    if engine.settled.one_rank:
        return short
    shrinks = not engine.settled.slices
    return report_to_ranks(world, engine.index, engine.micro, rows, short, shrinks=shrinks)


def forecast_remedies(module: nn.Module, plan: Plan, world: World, batch: Batch) -> list[Remedy]:
    """Changes that are forecast; none for what cannot be traced, or a device nobody knows."""
    try:
        cluster = cluster_for(world.device)
        facts = facts_for(module, batch)
        speeds = load_calibration(cluster.device.name)
        return find_remedies(facts, plan, cluster, speeds, failed=True)
    except Exception:  # a foreign module may do anything, and memory may run out again
        return []


def size(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def report_to_ranks(
    world: World, step: int, micro: int | None, rows: int, short: OutOfMemory, *, shrinks: bool
) -> RankOutOfMemory:
    """Leave word of what happened and end the others' wait; what all raise.

    Args:
        shrinks: whether a run may go on with smaller micro-batches.
    """
    now = min(micro or rows, rows)
    note = {
        "rank": world.place.rank,
        "step": step,
        "rows": now,
        "micro": largest_below(now, rows) if shrinks else 0,
        "remedy": short.remedy,
    }
    agreed = read_note(world.notes.post_once(NOTE, json.dumps(note)))
    world.end_others(str(agreed))
    return agreed


def largest_below(now: int, rows: int) -> int:
    """The largest micro-batch, at most half of the present one, that divides the rows; 0: none."""
    return next((part for part in range(now // 2, 0, -1) if rows % part == 0), 0)


def reported_out_of_memory(world: World) -> RankOutOfMemory | None:
    """What a rank whose memory ran out left for the others."""
    if world.mesh is None or not world.notes.has(NOTE):
        return None
    return read_note(world.notes.read(NOTE, NOTE_SECONDS))


def read_note(text: str) -> RankOutOfMemory:
    note = json.loads(text)
    micro = note["micro"]
    remedy = f"Go on with micro={micro}." if micro else note["remedy"]
    error = RankOutOfMemory(
        f"step {note['step']}",
        f"out of memory on rank {note['rank']} with micro-batches of {note['rows']}",
        remedy,
    )
    error.micro = micro
    return error
