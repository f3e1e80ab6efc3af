"""A few steps of a run under the profiler: its own real steps, which it learns from.

In order: warm-up, the same number of steps timed without a profiler, the profiled ones, and one
looked at operation by operation. Nothing is installed in a run that is not being profiled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import record_function

from stepladder.data import Batch
from stepladder.errors import DataError, RecordError, require_count
from stepladder.hardware import recognise_device
from stepladder.model import uncompiled
from stepladder.plan import BatchSplit, Plan
from stepladder.record import Profile, load_calibration
from stepladder.record.profile import CAUSES
from stepladder.trace import find_retained_graphs, live_graphs, reduce_spans
from stepladder.trace.attribute_time import AttributedTime
from stepladder.trace.capture import Capture, mark_calls
from stepladder.trace.operation_detail import OperationDetail
from stepladder.trace.plan_suggestions import SuggestionContext
from stepladder.trace.profile_verdict import Evidence, judge
from stepladder.trace.spans import DATA, STEP, SYNC, UPDATE
from stepladder.trace.step_lane import step_lane
from stepladder.world import World, device_memory_bytes, synchronize

from .engine import Engine
from .step_batch import Rows, check_series
from .tuning.planner_inputs import cluster_for, facts_for

WARMUP = 2
HEARD_SECONDS = 120.0  # for what other ranks found
NS = 1e-9


def profile(
    run: Engine,
    batches: Iterable[Any],
    *,
    steps: int = 4,
    folder: str | Path | None = None,
    rows: Rows | None = None,
) -> Profile:
    """Where the time of this run's steps goes; every rank calls it, and the run learns from them.

    Args:
        batches: 2 · `steps` + 3 of them at least, as `run.step` takes them.
        steps: how many are profiled; as many are timed without a profiler.
        folder: where the trace, for Perfetto or Chrome, is kept; None: nowhere.
        rows: as in `run.step`.
    """
    require_count("steps", steps, "a number of steps to profile")
    check_series(batches, "Give run.batches(data, size=32), or DataLoader(data, batch_size=32).")
    shards = run.shard(batches, rows, start=run.position)
    own = (run.own_batch(batch, rows) for batch in shards)
    source = CountedBatches(own, 2 * steps + WARMUP + 1)
    for _ in range(WARMUP):
        run.step(next(source))
    synchronize(run.world.device)
    known = live_graphs()
    plain = timed(run, source, steps)
    with Capture(run.world.device) as capture, mark_calls(type(run), "update", UPDATE):
        spent = timed(run, source, steps)
    found = reduce_spans(capture.spans, floor=capture.floor)
    sample = next(source)
    detail = look_closely(run, sample)
    graphs = find_retained_graphs(ignore=known)
    measured = summary(run, found, steps, spent, plain, sample, detail)
    own, lanes = share_notes(run.world, found, run.index)
    measured = replace(measured, own_seconds=own, lanes=lanes)
    if folder is not None:
        measured = replace(measured, files=(keep(capture, folder, run.world),))
    seen = Evidence(
        waits=detail.waits if detail else {},
        device_waits=found.waits * NS / steps,
        graphs=str(graphs) if graphs and graphs.count >= steps else "",
        update_operations=found.update_operations / steps,
        launching=found.launching,
        python=found.python,
        tensors=len([p for group in run.optimizer.param_groups for p in group["params"]]),
    )
    context = suggestion_context(run, sample)
    run.clock.restart(run.index)  # none of this is part of a step's time
    suggested = suggested_plans(run, context, sample)
    return judge(measured, replace(seen, unknown=context.unknown), suggested)


def profile_one_step(run: Engine, take: Callable[[], Any]) -> tuple[Any, SampledStep]:
    """One step that is taken anyway, under the profiler; every rank calls it at the same step."""
    with run.clock.leave_out_step():  # the profiler is not part of a step's time
        with Capture(run.world.device) as capture, mark_calls(type(run), "update", UPDATE):
            with record_function(STEP):
                taken = take()
            with record_function(SYNC):
                synchronize(run.world.device)
        found = reduce_spans(capture.spans, floor=capture.floor)
        _, lanes = share_notes(run.world, found, run.index)
    return taken, SampledStep({name: each * NS for name, each in found.collectives.items()}, lanes)


@dataclass(frozen=True, slots=True)
class SampledStep:
    """What one step under the profiler showed."""

    collectives: dict[str, float]  # seconds that this rank waited for each kind
    lanes: tuple[tuple[Mapping[str, Any], ...], ...]  # by rank, in the order of time

    def entries(self, step: int) -> dict[str, dict[str, Any]]:
        """As the journal keeps it, by kind."""
        lanes = [{"rank": rank, "spans": list(spans)} for rank, spans in enumerate(self.lanes)]
        return {
            "collectives": {"step": step, "seconds": self.collectives},
            "timeline": {"step": step, "lanes": lanes},
        }


class CountedBatches:
    """A feed that says when it is too short."""

    def __init__(self, feed: Iterator[Batch], needed: int) -> None:
        self.feed, self.needed, self.given = feed, needed, 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        try:
            batch = next(self.feed)
        except StopIteration:
            raise DataError(
                "batches",
                f"ended after {self.given} of the {self.needed} batches that a profile takes",
                "Give it more, or profile fewer steps.",
            ) from None
        self.given += 1
        return batch


def timed(run: Engine, source: CountedBatches, steps: int) -> float:
    """Seconds a step by the clock, from an idle device to an idle device."""
    began = time.perf_counter()
    for _ in range(steps):
        with record_function(DATA):
            batch = next(source)
        with record_function(STEP):
            run.step(batch)
    with record_function(SYNC):
        synchronize(run.world.device)
    return (time.perf_counter() - began) / steps


def look_closely(run: Engine, batch: Batch) -> OperationDetail | None:
    """One step operation by operation; none where a recorded graph is replayed instead."""
    if run.plan.graphs:
        run.step(batch)
        return None
    compiled = uncompiled(run.module) if run.plan.compile else nullcontext()
    with compiled, OperationDetail() as detail:
        run.step(batch)
    return detail


def summary(
    run: Engine,
    found: AttributedTime,
    steps: int,
    spent: float,
    plain: float,
    sample: Batch,
    detail: OperationDetail | None,
) -> Profile:
    device = run.world.device
    known = recognise_device(device_name(run.world), device_memory_bytes(device))
    streaming = found.causes["memory_bound"] + found.causes["optimizer"]
    counted = detail is not None and not run.plan.compile and streaming > 0
    return Profile(
        plan=str(run.plan),
        device=device_name(run.world),
        steps=steps,
        step_seconds=spent,
        plain_seconds=plain,
        causes={cause: found.causes[cause] * NS / steps for cause in CAUSES},
        collectives={name: each * NS / steps for name, each in found.collectives.items()},
        hidden={name: each * NS / steps for name, each in found.hidden.items()},
        operations=found.operations / steps,
        busy_share=found.busy * NS / steps / spent,
        flops_per_second=run.flops.over(plain, sample).model,
        peak_flops_per_second=run.flops.peak,
        bytes_per_second=detail.moved_bytes / (streaming * NS / steps)
        if detail and counted
        else None,
        peak_bytes_per_second=known.bandwidth_bytes_per_second if known else None,
    )


def device_name(world: World) -> str:
    return torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "CPU"


def share_notes(world: World, found: AttributedTime, moment: int) -> tuple[Any, Any]:
    """Every rank's seconds outside collectives, step by step, and its lane, left as notes."""
    mine = (tuple(spent * NS for spent in found.own), step_lane(found))
    if world.place.num_ranks == 1:
        return (mine[0],), (mine[1],)
    world.notes.post(f"profile/{moment}/{world.place.rank}", json.dumps(mine))
    notes = [
        json.loads(world.notes.read(f"profile/{moment}/{rank}", HEARD_SECONDS))
        for rank in range(world.place.num_ranks)
    ]
    return tuple(tuple(own) for own, _ in notes), tuple(tuple(lane) for _, lane in notes)


def keep(capture: Capture, folder: str | Path, world: World) -> str:
    target = Path(folder) / f"trace-rank{world.place.rank}.json.gz"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return str(capture.save(target))
    except (OSError, RuntimeError) as refused:
        raise RecordError(
            "profile", f"{target} cannot be written ({refused})", "Name another folder."
        ) from refused


def suggestion_context(run: Engine, sample: Batch | None = None) -> SuggestionContext:
    """What the planner needs to suggest plans for this run; where it is not known, why."""
    try:
        place = run.world.place
        cluster = replace(
            cluster_for(run.world.device),
            num_nodes=place.num_ranks // place.local_ranks,
            devices_per_node=place.local_ranks,
        )
        facts = facts_for(run.module, sample)
        calibration = load_calibration(cluster.device.name)
    except Exception as unable:  # a foreign module may do anything; its profile stands
        return SuggestionContext(unknown=str(unable).partition("\n")[0] or type(unable).__name__)
    known = calibration or cluster.device.peak(run.plan.precision.compute)
    why = "" if known else f"no speed is known for {cluster.device}: run 'stepladder calibrate'"
    return SuggestionContext(facts, cluster, calibration, why)


def suggested_plans(run: Engine, context: SuggestionContext, sample: Batch) -> list[Any]:
    """Plans that the planner forecasts to be better than the run's, on batches like this."""
    size = sample.size
    micro = min(run.micro or sample.num_rows, sample.num_rows)
    asked: Plan = replace(run.plan, batch=BatchSplit(size, micro))
    try:
        return context.suggestions(asked)
    except Exception:  # a batch that no forecast divides evenly says nothing of the profile
        return []
