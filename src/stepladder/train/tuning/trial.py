"""One trial: a plan runs a few steps on a copy of the module and the user's own batch."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stepladder.data import Batch
from stepladder.data.batch import map_tensors
from stepladder.errors import ModelError, first_line
from stepladder.model.forward_state import state_restored
from stepladder.model.tracing.copy_module import copy_module
from stepladder.plan import Plan
from stepladder.plan.options import GIB
from stepladder.train.checkpointing.rng_state import untouched
from stepladder.train.health.out_of_memory import without_rehearsal
from stepladder.train.step_batch import as_batch

from .loss_state import loss_state_kept

if TYPE_CHECKING:
    from stepladder.train.run import Run

WARM_STEPS = 3  # with what is compiled, tried or allocated only once
TURNS, TURN_SECONDS = 5, 0.1  # of the steps that are timed; a turn is a step or more
# Two plans whose times differ by less than this share take so many turns more, or so many seconds.
NEAR, MORE_TURNS, MORE_SECONDS = 0.03, 10, 3.0
# Largest relative difference of the first step's loss and of its gradient norm, by the type worked
# in. A fused kernel rounds elsewhere; another result is off by more.
LOSSES = {"float32": 1e-4, "bfloat16": 1e-2, "float16": 5e-3}
NORMS = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 2e-2}
SEEDS_APART = 4  # differences between two seeds' losses that are put down to chance

MakeRun = Callable[[nn.Module, Any, Plan], "Run"]  # of a module, its loss and a plan


@dataclass(frozen=True, slots=True)
class Trial:
    """How a plan fared."""

    plan: Plan
    step_seconds: float = math.inf
    first_seconds: float = 0.0  # until the first step had ended, with all compilation
    peak_bytes: int = 0  # beyond what was in use before; 0 where it is not known
    loss: float = math.nan  # of the first step
    norm: float = math.nan  # of its gradients
    chance: float = 0.0  # how far the loss is from that with other random numbers
    dropped: str = ""  # why it cannot be chosen
    host_seconds: float = 0.0  # of a step, in which the host launches its kernels
    ratio: float = math.nan  # of its time to that of the best plan before, in alternating turns

    def __str__(self) -> str:
        words = words_of(self.plan)
        if self.dropped:
            return f"{words}: dropped, {self.dropped}"
        memory = f", {self.peak_bytes / GIB:.2f} GiB" if self.peak_bytes else ""
        return (
            f"{words}: {1e3 * self.step_seconds:.3g} ms a step{memory}, the first after "
            f"{self.first_seconds:.3g} s"
        )

    def drop(self, why: str) -> Trial:
        """This trial, dropped where there is a reason."""
        return replace(self, dropped=why)

    def checked_against(self, reference: Trial) -> Trial:
        """This trial, dropped where its first step computed something else."""
        work = self.plan.precision.work
        for what, mine, other, tolerance in (
            ("loss", self.loss, reference.loss, LOSSES[work]),
            ("gradient norm", self.norm, reference.norm, NORMS[work]),
        ):
            allowed = tolerance * abs(other)
            if what == "loss":
                allowed += SEEDS_APART * reference.chance
            elif reference.chance:
                continue  # it depends on the random numbers too, and nobody measured how much
            both_nan = math.isnan(mine) and math.isnan(other)
            if not abs(mine - other) <= allowed and not both_nan:
                reason = f"its first {what} is {mine:.6g} and not {other:.6g}"
                return self.drop(reason)
        return self


def words_of(plan: Plan) -> str:
    """The plan without its optimizer, which no trial changes."""
    return str(replace(plan, optimizer=Plan().optimizer))


@dataclass(frozen=True, slots=True)
class TrialRun:
    """The run of a plan on a copy of the module, which can take further turns."""

    run: Run
    batch: Any
    steps: int  # of a turn

    def take_turn(self) -> float:
        return seconds_of(self.run, self.batch, self.steps)


def try_plan(
    plan: Plan,
    module: nn.Module,
    loss: Any,
    batch: Any,
    make_run: MakeRun,
    device: torch.device,
    rival: TrialRun | None = None,
) -> tuple[Trial, TrialRun | None]:
    """Time a plan on a copy; the module, its gradients and every generator stay as they are.

    Args:
        rival: takes turns with it, so that a clock that drifts, or other work, slows both.
    """
    parameters = list(module.parameters())
    gradients = [parameter.grad for parameter in parameters]
    try:
        # Code that is not copied, such as a function in an attribute, may run the module itself.
        with (
            untouched(device), state_restored(module), loss_state_kept(loss), without_rehearsal(),
        ):  # fmt: skip
            return time_run(plan, *copied(module, loss), batch, make_run, device, rival)
    except Exception as error:  # a foreign module may fail under any plan, in any way
        return Trial(plan, dropped=first_line(error)), None
    finally:
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient  # a loss may have reached the module beside its copy
        release(device)


def release(device: torch.device) -> None:
    """Give back the memory of runs that nobody holds."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def copied(module: nn.Module, loss: Any) -> tuple[nn.Module, Any]:
    """Copies of the module and of a loss that is one, which may share parameters."""
    for name, part in module.named_modules():
        if isinstance(vars(part).get("forward"), FunctionType):
            problem = "forward was replaced by a function, which a copy would share"
            raise ModelError(f"model.{name}".rstrip("."), problem)
    pair = nn.ModuleList([module, loss] if isinstance(loss, nn.Module) else [module])
    for parameter in pair.parameters():
        parameter.grad = None  # not copied: a step drops it anyway
    try:
        made = list(copy_module(pair).children())
    except ModelError as unable:
        raise ModelError(type(module).__name__, unable.problem) from unable
    return made[0], made[1] if len(made) > 1 else loss


def fresh(batch: Any) -> Batch:
    """A copy of a batch: a module may write into its inputs."""

    def copy(one: torch.Tensor) -> torch.Tensor:
        return one.clone().pin_memory() if one.is_pinned() else one.clone()

    made = as_batch(batch, 0)
    return replace(
        made, inputs=map_tensors(copy, made.inputs), targets=map_tensors(copy, made.targets)
    )


def time_run(
    plan: Plan,
    module: nn.Module,
    loss: Any,
    batch: Any,
    make_run: MakeRun,
    device: torch.device,
    rival: TrialRun | None,
) -> tuple[Trial, TrialRun | None]:
    began, before = time.perf_counter(), start_peak(device)
    run = make_run(module, loss, plan)
    with state_restored(run.module):
        chance = 0.0 if plan.compile else chance_of(run, fresh(batch))
    batch = fresh(batch)
    first = run.step(batch)
    numbers = Trial(plan, loss=first.loss, norm=first.grad_norm, chance=chance)
    first_seconds = time.perf_counter() - began
    for _ in range(WARM_STEPS):
        last = run.step(batch)
    mine = TrialRun(run, batch, max(1, min(20, round(TURN_SECONDS / max(last.seconds, 1e-6)))))
    peak = read_peak(device) - before
    host = min(host_seconds_of(run, batch) for _ in range(3))
    seconds, ratio = take_turns(mine, rival)
    if unrecorded := run.climbed.forward_backward.off:
        return numbers.drop(f"no step of it is recorded: {unrecorded}"), None
    if short := next((event for event in run.events if "out of memory" in event), ""):
        return numbers.drop(short), None
    trial = replace(
        numbers, step_seconds=seconds, first_seconds=first_seconds, host_seconds=host,
        peak_bytes=peak, ratio=ratio,
    )  # fmt: skip
    return trial, mine


def start_peak(device: torch.device) -> int:
    """Bytes in use, from which on the most is noted; 0 where they are not counted."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def read_peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def take_turns(mine: TrialRun, rival: TrialRun | None) -> tuple[float, float]:
    """Median seconds of a step, and the median of their ratio to the rival's in the turn before.

    Two plans that are close take more turns, so that noise does not choose between them.
    """
    pairs = [take_pair(mine, rival) for _ in range(TURNS if mine.steps > 1 else 3)]
    ratio = median(own / other for own, other in pairs)
    if abs(ratio - 1) < NEAR:
        one = mine.steps * sum(pairs[-1])
        more = max(1, min(MORE_TURNS, round(MORE_SECONDS / one)))
        pairs += [take_pair(mine, rival) for _ in range(more)]
        ratio = median(own / other for own, other in pairs)
    return median(own for own, _ in pairs), ratio


def take_pair(mine: TrialRun, rival: TrialRun | None) -> tuple[float, float]:
    other = math.nan if rival is None else rival.take_turn()
    return mine.take_turn(), other


def seconds_of(run: Run, batch: Any, steps: int) -> float:
    """Of one step, over so many; reading a report waits for the device."""
    began = time.perf_counter()
    for _ in range(steps):
        report = run.step(batch)
    float(report.loss)
    return (time.perf_counter() - began) / steps


def host_seconds_of(run: Run, batch: Any) -> float:
    """Of one step, from an idle device on: a full queue would have the host wait."""
    began = time.perf_counter()
    report = run.step(batch)
    spent = time.perf_counter() - began
    float(report.loss)
    return spent


def chance_of(run: Run, batch: Any) -> float:
    """How far the first loss is from that with other random numbers; 0 where it draws none."""
    seed, mine = run.seed, run.own_batch(batch).to(run.world.device)
    losses = []
    for each in (seed, seed + 1):
        run.seed = each
        losses.append(run.gradients(mine).item())
    run.seed = seed
    return abs(losses[0] - losses[1])
