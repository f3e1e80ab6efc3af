"""Plans tried one after the other on the same module and batch, each against the best before it.

The run of the best plan is kept, and takes turns with that of every plan after it: what slows the
machine for a while slows both. Where memory is too short for two runs, medians are compared.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stepladder.plan import Plan
from stepladder.train.step_batch import as_batch

from .trial import MakeRun, Trial, TrialRun, release, try_plan

TIE = 0.005  # of the time, in alternating turns: as fast, as far as they can tell
APART = 0.02  # of the time, of two that took no turns
LESS = 0.99  # of the memory: less by more than an allocator's rounding
ROOM = 1.5  # times the best plan's memory that must be free beside it
PARAMETER_COPIES = 8  # of its parameters that a run needs, where its memory is not counted


@dataclass(slots=True)
class Contest:
    """Trials until a budget is spent, and the best of them so far."""

    module: nn.Module
    loss: Any
    batch: Any
    make_run: MakeRun
    device: torch.device
    budget_seconds: float
    say: Callable[[str], None]
    begin: Callable[[str, Plan], None]  # tells what is tried next
    began: float = field(default_factory=time.perf_counter)
    trials: list[Trial] = field(default_factory=list)
    best: Trial | None = None
    rival: TrialRun | None = None  # of the best plan, while memory is free beside it

    @property
    def rows(self) -> int:
        """Of the batch."""
        return as_batch(self.batch, 0).num_rows

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.began

    @property
    def left(self) -> float:
        return max(0.0, self.budget_seconds - self.spent)

    @property
    def reference(self) -> Trial | None:
        """What the others must compute: the first that ended."""
        return next((trial for trial in self.trials if not trial.dropped), None)

    def enter(
        self,
        what: str,
        plan: Plan,
        *,
        wins: Callable[[Trial, Trial], str] | None = None,
    ) -> Trial:
        """Try a plan; it is the best from now on where it wins.

        Args:
            wins: of the trial and the best one: why it is dropped all the same, or nothing where
                it takes the best one's place; None: where it is faster, or as fast and smaller.
        """
        self.begin(what, plan)
        trial, run = self.time(plan)
        if self.reference is not None and not trial.dropped:
            trial = trial.checked_against(self.reference)
        if wins is not None and self.best is not None and not trial.dropped:
            trial = trial.drop(wins(trial, self.best))
        self.trials.append(trial)
        self.say(f"{what}: {trial}")
        if not trial.dropped and (self.best is None or wins is not None or beats(trial, self.best)):
            self.best, self.rival = trial, run
        return trial

    def time(self, plan: Plan) -> tuple[Trial, TrialRun | None]:
        given = plan, self.module, self.loss, self.batch, self.make_run, self.device
        self.make_room()
        trial, run = try_plan(*given, self.rival)
        if "out of memory" in trial.dropped and self.rival is not None:
            self.end()
            return try_plan(*given)
        return trial, run

    def make_room(self) -> None:
        """Let the best plan's run go where the next one may find no room beside it."""
        if self.best is None or self.rival is None:
            return
        parameters = sum(p.numel() * p.element_size() for p in self.module.parameters())
        needed = self.best.peak_bytes or PARAMETER_COPIES * parameters
        if free_bytes(self.device) < ROOM * needed:
            self.end()

    def end(self) -> None:
        """Let the best plan's run go: no other takes turns with it any more."""
        self.rival = None
        release(self.device)

    def leave_out(self, plan: Plan, why: str) -> None:
        self.trials.append(Trial(plan, dropped=why))


def beats(trial: Trial, best: Trial) -> bool:
    """Whether a plan is faster than the best one, or as fast and needs less memory.

    The best one was tried earlier, and so is the plainer one.
    """
    ratio, noise = time_ratio(trial, best)
    if abs(ratio - 1) > noise:
        return ratio < 1
    return trial.peak_bytes < LESS * best.peak_bytes


def time_ratio(trial: Trial, best: Trial) -> tuple[float, float]:
    """A trial's time as a share of the best one's, and how far off that may be."""
    if math.isnan(trial.ratio):
        return trial.step_seconds / best.step_seconds, APART
    return trial.ratio, TIE


def free_bytes(device: torch.device) -> float:
    """Of the device, or of the host for a processor; infinite where nobody says."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return math.inf
