"""The rehearsal: our own step on fake tensors, in a fake world of as many ranks as the plan has.

It is the code that trains, from the ladder to the optimizer's update, so nothing of a plan can be
forgotten. Two steps are taken: the optimizer's state appears in the first, and the second is like
every later one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from stepladder.data import Batch
from stepladder.errors import ModelError, PlanError, StepladderError, first_line
from stepladder.model.tracing.fake_tensors import grouped_matmul_in_any_dtype
from stepladder.plan import Optimizer, Plan, SettledPlan
from stepladder.plan.refit import spread
from stepladder.plan.settled.settle import settle
from stepladder.record import Rehearsal
from stepladder.seam.dispatch import fake_tensor_mode, shaped_by_numbers, silent_fake_tensors
from stepladder.seam.modules import fake_parameters_moved
from stepladder.seam.sharding import own_slices_alone
from stepladder.train.build_run import build
from stepladder.train.health.nonfinite import Health
from stepladder.train.module_inputs import arranged_sample
from stepladder.train.run import Run
from stepladder.world import World

from .compiled.compiled_recorder import CompiledRecorder, graphs_followed
from .fake_numbers import FakeNumbers
from .fake_subject import fake_batch, fake_copy, few_micro_batches, rows_of_rank
from .fake_world import Broadcasts, fake_world
from .gpu_step import kernels_of
from .moments import claim_state, moments_followed
from .recorder import FORWARD, Recorder
from .replay import Replay
from .workspaces import Workspaces

STEPS = 2
UNTRIED = "loss: the first step also tries what it is a mean over, on a copy; that is not counted"


def rehearse(
    model: nn.Module,
    plan: str | Plan,
    *,
    sample: Any,
    loss: str | Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: str | Optimizer | None = None,
    ranks: int = 1,
    rank: int = 0,
    device: str = "cuda",
    limit_bytes: int | None = None,
    broadcasts: Broadcasts | None = None,
) -> Rehearsal:
    """The memory of a rank, from our own training step on fake tensors; the module stays as it is.

    Args:
        model: any module, on the meta device too.
        sample: a batch as `run.step` takes it; its rows are repeated as the plan asks for.
        loss: as in `climb`.
        optimizer: in words, in place of the plan's.
        ranks: of the world that is played.
        rank: which of them.
        device: "cuda" replays the allocations through a model of torch's caching allocator;
            "cpu" counts them as they are.
        limit_bytes: of the device, beyond which the allocator gives back what it does not use.
        broadcasts: of ranks of earlier pipeline stages that were played before; None: of none.

    >>> import torch
    >>> from stepladder.rehearse import rehearse
    >>> batch = torch.randn(8, 64), torch.randint(0, 16, (8,))
    >>> model = torch.nn.Linear(64, 16)
    >>> found = rehearse(model, "fp32", sample=batch, loss="cross_entropy", device="cpu")
    >>> found.memory.parameters == 4 * (64 * 16 + 16)
    True
    """
    settled = settled_for(plan, optimizer, ranks, device)
    eager, notes = rehearsable(settled, model, device)
    given = arranged_sample(sample, model, loss)
    if given is None:
        raise PlanError(
            "sample", "is None, and a step needs a batch", "Give one, of a row or more."
        )
    workspaces = Workspaces(device)
    recorder = recorder_of(settled, model, device, workspaces)
    with played(eager, rank, device, recorder, broadcasts or Broadcasts()) as world:
        notes += run_steps(model, eager, world, given, loss, recorder, device)
    return report(settled, ranks, rank, device, recorder, limit_bytes, notes)


def recorder_of(
    settled: SettledPlan, model: nn.Module, device: str, workspaces: Workspaces
) -> Recorder:
    if compiles(settled, model, device):
        return CompiledRecorder("cpu", workspaces, workspaces.keeps, asked=settled)
    return Recorder("cpu", workspaces, workspaces.keeps)


def compiles(settled: SettledPlan, model: nn.Module, device: str) -> bool:
    """Whether what the compiler makes of the step is rehearsed, and not bounded by the step.

    Recurrent layers stay out of the compiler, which breaks its graph there.
    """
    recurrent = any(isinstance(part, nn.RNNBase) for part in model.modules())
    on_gpu = device == "cuda" and settled.one_rank
    return bool(settled.plan.compile) and on_gpu and not recurrent


def settled_for(
    plan: str | Plan, optimizer: str | Optimizer | None, ranks: int, device: str
) -> SettledPlan:
    """The plan for so many ranks, as `climb` would settle it."""
    if device not in ("cpu", "cuda"):
        raise PlanError("device", f"'{device}' is not rehearsed", "Use 'cuda' or 'cpu'.")
    read = Plan.parse(plan) if isinstance(plan, str) else plan.check()
    if optimizer is not None:
        how = Optimizer.parse(optimizer) if isinstance(optimizer, str) else optimizer
        read = replace(read, optimizer=how)
    return settle(spread(read, ranks), ranks, open_batch=True)


def rehearsable(
    settled: SettledPlan, model: nn.Module, device: str
) -> tuple[SettledPlan, tuple[str, ...]]:
    """The plan with what no fake tensor can play left out, and what that means."""
    plan, notes = settled.plan, []
    if plan.offload:
        raise cannot(
            "offload",
            "offload=" + ",".join(plan.offload),
            "Leave it out: the plan then needs more.",
        )
    if plan.compress.kind != "none":
        raise cannot("compress", str(plan.compress), "Leave it out.")
    if plan.exact.slices:
        raise cannot("exact", "exact=ranks", "Leave it out.")
    if plan.compile and not compiles(settled, model, device):
        notes.append(
            "compile: rehearsed eagerly, an upper bound: the compiler keeps no more for backward"
        )
    elif plan.compile:
        notes.append(
            "compile: what is kept for backward, fused and freed is computed as the compiler does, "
            "as one graph where it may break into several"
        )
    if plan.graphs:
        notes.append("graphs: left out; a recorded step keeps its memory, so more stays reserved")
    if plan.kernels:
        notes.append("kernels: rehearsed without them, an upper bound")
    if device == "cuda":
        notes.append(
            "cuda: kernels and autocast are imitated on the CPU; what kernels take while they run "
            "is by rules measured on an H200, and a library may choose otherwise for other shapes"
        )
    counted = nn.LSTM if device == "cuda" else ()
    recurrent = [part for part in model.modules() if isinstance(part, nn.RNNBase)]
    if not all(isinstance(part, counted) for part in recurrent):
        notes.append("recurrent layers: what their library keeps for backward is not counted")
    plain = replace(plan, compile=False, graphs=False, kernels=False, memory_bytes=None)
    return replace(settled, plan=plain), tuple(notes)


def cannot(field: str, said: str, remedy: str) -> PlanError:
    return PlanError(field, f"{said} cannot be rehearsed", remedy)


@contextmanager
def played(
    settled: SettledPlan, rank: int, device: str, recorder: Recorder, broadcasts: Broadcasts
) -> Iterator[World]:
    """The world and the modes in which a step is rehearsed."""
    with ExitStack() as stack:
        fake = fake_world(settled.layout, rank, torch.device("cpu"), broadcasts)
        world = stack.enter_context(fake)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(silent_fake_tensors())
        stack.enter_context(fake_parameters_moved())
        stack.enter_context(own_slices_alone())
        stack.enter_context(fake_tensor_mode(grouped_matmul_in_any_dtype))
        stack.enter_context(FakeNumbers())
        stack.enter_context(recorder)
        stack.enter_context(kernels_of(device))
        yield world


def run_steps(
    model: nn.Module,
    settled: SettledPlan,
    world: World,
    sample: Batch,
    loss: Any,
    recorder: Recorder,
    device: str,
) -> tuple[str, ...]:
    """Build the run and take its steps; what is to be said of them."""
    rows = rows_of_rank(settled, sample)
    few, _ = few_micro_batches(settled, rows)
    played = rows_of_rank(few, sample)
    try:
        module = fake_copy(model)
        run = build(
            module, few, world,
            loss=loss, sample=fake_batch(sample, sample.num_rows, 1), rate="constant", seed=0,
            health=Health("skip"), because="",
        )  # fmt: skip
        known = settle_loss(run)
        claim_state(recorder, run.module, run.optimizer)
        recorder.phase = FORWARD
        held = list[tuple[Batch, ...]]()
        blocks = blocks_here(run)
        with (
            moments_followed(recorder, run.module, run.optimizer),
            graphs_followed(recorder, run.module, blocks),
        ):
            for _ in range(STEPS):
                whole = [played, rows - played] if played < rows else [rows]
                held.append(tuple(fake_batch(sample, n, few.data_ranks) for n in whole))
                take_step(run, held[-1][0])
                # A GPU is behind its host: when a batch comes, the one before is still in use.
                del held[: -1 if device == "cuda" else None]
        return () if known else (UNTRIED,)
    except StepladderError:
        raise
    except shaped_by_numbers() as unknown:
        raise ModelError(
            type(model).__name__,
            f"cannot be rehearsed: the shape of {unknown} depends on numbers",
            "Use the forecast, or measure the step.",
        ) from unknown
    except Exception as failed:  # a foreign module may fail without numbers in any way
        raise ModelError(
            type(model).__name__,
            f"cannot be rehearsed ({type(failed).__name__}: {first_line(failed)})",
            "Use the forecast, or measure the step.",
        ) from failed


def blocks_here(run: Run) -> list[nn.Module]:
    """The blocks that this rank has: a stage has some of them."""
    anatomy = run.climbed.anatomy
    parts = (anatomy.part(run.module, name) for name in anatomy.blocks)
    return [part for part in parts if part is not None]


def settle_loss(run: Run) -> bool:
    """Take what the loss is a mean over for known; whether it was.

    A trial would compare losses, which have no numbers here.
    """
    parts = run.climbed.forward_backward
    known, parts.loss = parts.loss.known, replace(parts.loss, known=True)
    cut = run.settled.data_ranks > 1 or parts.micro is not None
    return known or not cut


def take_step(run: Run, batch: Batch) -> None:
    run.step(batch)
    run.health.unread.clear()  # a step's marks are read by whoever reads its report


def report(
    settled: SettledPlan,
    ranks: int,
    rank: int,
    device: str,
    recorder: Recorder,
    limit_bytes: int | None,
    notes: tuple[str, ...],
) -> Rehearsal:
    replay, events = Replay(device == "cuda", limit_bytes), recorder.final_events()
    replay.run(events)
    _, phase, module = replay.at_peak
    return Rehearsal(
        plan=str(settled.plan),
        ranks=ranks,
        rank=rank,
        device=device,
        memory=replay.memory(events),
        phase=phase,
        module=module,
        peaks=dict(replay.peaks),
        largest=replay.largest(events),
        allocations=sum(event.born for event in events),
        notes=notes,
        out_of_memory=replay.short,
    )
