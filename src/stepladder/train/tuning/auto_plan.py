"""What `plan="auto"` chooses, with its reason.

The planner chooses where it can: it knows what the module costs, what this device can do, and how
large a batch is. Where one of these is unknown a plain rule stays, and the reason says which. A
choice is a convenience, so no failure to make a good one stops a run.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from stepladder.errors import PlanError, first_line
from stepladder.hardware import Cluster
from stepladder.model import builtin_shape
from stepladder.plan import (
    BF16,
    FP32,
    PRECISIONS,
    BatchSplit,
    Optimizer,
    Plan,
    Precision,
    Recompute,
)
from stepladder.plan.automatic import TUNE, is_automatic, without_budget
from stepladder.plan.options import GIB
from stepladder.planner import forecast, search
from stepladder.planner.forecast import MARGIN
from stepladder.record import Calibration, Forecast
from stepladder.train.checkpointing.rng_state import untouched
from stepladder.workload import Facts
from stepladder.world import Place, pick_device

from .planner_inputs import cluster_for, facts_for, rows_of, speeds_for
from .rank_plan import plan_for_ranks

WORTHWHILE = 0.9  # of fp32's step time, below which fewer bits are worth a processor's while


@dataclass(frozen=True, slots=True)
class Choice:
    plan: Plan
    because: str = ""  # nothing where it was asked for


@dataclass(frozen=True, slots=True)
class Known:
    """What a choice can be founded on."""

    device: torch.device
    facts: Facts
    cluster: Cluster
    calibration: Calibration | None
    batch: int
    compiles: bool = False
    fuses: bool = False  # kernels that check for themselves where they win


def choose_plan(
    text: str,
    device: str,
    place: Place,
    *,
    model: nn.Module | None = None,
    sample: Any = None,
    batch: int | None = None,
    optimizer: Optimizer | None = None,
) -> Choice:
    """The plan a text names; for `auto`, the fastest that fits this process's device.

    Args:
        optimizer: that the run will have, whatever the text says.
    """
    if not isinstance(text, str):
        problem = f"a {type(text).__name__} is neither words nor a Plan"
        raise PlanError("plan", problem, "Write 'auto', or words such as 'bf16 zero3'.")
    words = text.split()
    if not is_automatic(words):
        if any(word.startswith(TUNE) for word in words):
            problem = "plans are tried for plan=auto alone, and this one is written out"
            raise PlanError("tune", problem, "Leave it out, or begin with auto.")
        return Choice(Plan.parse(text))
    words = without_budget(words)
    here = pick_device(device, place.local_rank)
    name, because = precision_for(here)
    if given := [word for word in words[1:] if word in PRECISIONS]:
        name, because = given[0], f"{given[0]} was asked for"
        words = [word for word in words if word != name]
    plain = Plan.parse(" ".join([name, *words[1:]]))
    plain = plain if optimizer is None else replace(plain, optimizer=optimizer)
    if place.num_ranks > 1:
        return choose_for_ranks(here, plain, name, because, place, model, sample, batch)
    if not is_open(plain, name):
        return Choice(plain, f"{because}; the rest was asked for")
    try:
        with untouched(here):  # describing a module runs it, and it may draw random numbers
            return plan_ahead(here, plain, model, sample, batch, off=switched_off(words))
    except Exception as unable:  # a module nobody has seen may do anything while it is described
        return Choice(plain, f"{because}; the planner has nothing to add: {first_line(unable)}")


def choose_for_ranks(
    device: torch.device,
    plain: Plan,
    precision: str,
    because: str,
    place: Place,
    model: nn.Module | None,
    sample: Any,
    batch: int | None,
) -> Choice:
    """Copies on every rank, or a plan that fits where they do not; a layout that is asked for."""
    if plain.zero or plain.layout != Plan().layout:
        return Choice(plain, f"{because}; the layout was asked for")
    copies = replace(plain, layout=replace(plain.layout, replicate=-1))
    whole = f"each of {place.num_ranks} ranks holds a whole copy"
    if not is_open(plain, precision):
        return Choice(copies, f"{because}; {whole}")
    try:
        with untouched(device):
            plan, why = plan_for_ranks(device, plain, place, model, sample, batch)
    except Exception as unable:  # as below: no failure to make a good choice stops a run
        unplanned = f"the planner has nothing to add: {first_line(unable)}"
        return Choice(copies, f"{because}; {whole}; {unplanned}")
    return Choice(plan, f"{because}; {why}")


def is_open(plan: Plan, precision: str) -> bool:
    """Whether micro-batch, recomputation and precision are still to be chosen."""
    free = Plan(
        precision=Precision.parse(precision),
        batch=BatchSplit(plan.batch.sequences),
        optimizer=plan.optimizer,
        compile=plan.compile,
        kernels=plan.kernels,
        memory_bytes=plan.memory_bytes,
    )
    return plan == free


def switched_off(words: list[str]) -> frozenset[str]:
    """Fields that were asked to stay off, and so are not chosen."""
    return frozenset(word.removesuffix("=off") for word in words if word.endswith("=off"))


def plan_ahead(
    device: torch.device,
    plain: Plan,
    model: nn.Module | None,
    sample: Any,
    batch: int | None,
    *,
    off: frozenset[str] = frozenset(),
) -> Choice:
    """Ask the planner; raises where it has too little to go by."""
    size = batch or plain.batch.sequences or rows_of(sample)
    if model is None or not size:
        raise LookupError("no batch was given to plan for")
    cluster = cluster_for(device)
    calibration = speeds_for(device)
    # Only our own models are known to compile; a foreign one is compiled when that is asked for.
    compiles = builtin_shape(model) is not None and can_compile(device)
    compiles, fuses = compiles and "compile" not in off, "kernels" not in off
    facts = facts_for(model, sample)
    known = Known(device, facts, cluster, calibration, size, compiles, fuses and is_cuda(device))
    plan, said = best_of(known, start_of(known, plain))
    if not batch and not plain.batch.sequences:
        # The sample was one batch of many: only a pass smaller than it says something of others.
        micro = plan.batch.micro
        plan = replace(plan, batch=BatchSplit(micro=micro if micro != size else None))
    return Choice(replace(plan, layout=plain.layout, zero=plain.zero), reason(said, known))


def start_of(known: Known, plain: Plan) -> Plan:
    """What is not searched: precision, compilation, kernels, the optimizer."""
    compiles = plain.compile or known.compiles
    plain = replace(plain, kernels=plain.kernels or known.fuses)
    measured = known.calibration.timings if known.calibration else ()
    steps = {t.compute: t.seconds for t in measured if t.kind == "step"}
    if plain.precision == FP32 and {"fp32", "bf16"} <= steps.keys():
        # Products alone do not tell: what stands between them may be slower in fewer bits.
        worth = steps["bf16"] < WORTHWHILE * steps["fp32"]
        return replace(plain, precision=BF16 if worth else FP32, compile=compiles)
    return replace(plain, compile=compiles)


def best_of(known: Known, start: Plan) -> tuple[Plan, Forecast]:
    """The fastest plan that fits; a whole batch in one pass counts, whatever its size."""
    facts, cluster, calibration = known.facts, known.cluster, known.calibration
    choices = search(facts, cluster, batch=known.batch, start=start, calibration=calibration)
    plan, said = choices.best.plan, choices.forecasts[0]
    if said.time is None:
        raise LookupError(f"{said.reasons[-1]} 'stepladder calibrate' measures it.")
    if plan.offload:
        raise LookupError("it would fit only with the optimizer in host memory")
    whole = replace(plan, batch=BatchSplit(known.batch, known.batch, 1), recompute=Recompute())
    at_once = forecast(facts, whole, cluster, calibration)
    if (
        at_once.fits
        and at_once.memory.peak_bytes < MARGIN * limit(at_once)
        and (seconds(at_once) <= seconds(said))
    ):
        return whole, at_once
    return plan, said


def limit(said: Forecast) -> float:
    return float("inf") if said.memory_limit_bytes is None else said.memory_limit_bytes


def seconds(said: Forecast) -> float:
    assert said.time is not None
    return said.time.step_seconds


def reason(said: Forecast, known: Known) -> str:
    rate = said.tokens_per_second or 0.0
    source = "measured" if known.calibration else "usual"
    unit = "tokens" if known.facts.tokens > 1 else "samples"
    return (
        f"the fastest that fits by the {source} speeds of {known.cluster.device}: forecast "
        f"{rate:,.0f} {unit}/s, {said.memory.peak_bytes / GIB:.2f} GiB"
    )


def is_cuda(device: torch.device) -> bool:
    return device.type == "cuda"


def can_compile(device: torch.device) -> bool:
    """Whether torch's compiler pays here and has what it needs: triton, and a C compiler."""
    builds = any(map(shutil.which, ("cc", "gcc", "clang")))
    return is_cuda(device) and builds and find_spec("triton") is not None


def precision_for(device: torch.device) -> tuple[str, str]:
    """A precision and why."""
    if device.type != "cuda":
        return "fp32", "a CPU gains little from fewer bits in a small model, and fp32 is exact"
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16", "this device has bf16 matrix units, and fp16 would need loss scaling"
    if torch.cuda.get_device_capability(device) >= (7, 0):
        return "fp16", "this device has fp16 matrix units and none for bf16"
    return "fp32", "this device has no matrix units for fewer bits"
