"""Choosing among plans that compute the same by trying each on the module and the batch.

Trials run on copies, one after the other, until the budget is spent; the plan without compilation
comes first, since what the others compute is held against it, and then plain compilation, which is
what a user would write. A later plan takes the place of the best one if it is faster by more than
noise, or as fast with less memory. What was found is kept for the next start.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from stepladder.errors import first_line
from stepladder.plan import Plan
from stepladder.plan.automatic import TUNE, read_budget
from stepladder.plan.options import GIB, Exact
from stepladder.world import Place

from .candidates import candidates, in_micro_batches, recorded
from .contest import Contest, time_ratio
from .remembered import keep, key_of, recall
from .trial import MakeRun, Trial, words_of

BUDGET_SECONDS = 60.0
FREE = 1.005  # of the time and of the memory: as far as alternating turns can tell, nothing
LATE = 0.25  # the host's share of a step, below which launching kernels at once gains nothing


@dataclass(slots=True)
class Tuner:
    """Tries plans when a first batch is known."""

    budget_seconds: float
    written: frozenset[str]  # words of the plan that the user wrote
    device: torch.device
    several: bool = False  # ranks, each of which tries the plans alone
    silent: bool = False  # another rank says what is tried
    events: list[str] = field(default_factory=list)  # what was tried, for the run's events
    step_seconds: float | None = None  # of the plan that was chosen

    def choose(
        self,
        plan: Plan,
        module: nn.Module,
        loss: Any,
        batch: Any,
        make_run: MakeRun,
        *,
        fuses_head: Callable[[], bool] = lambda: False,
    ) -> tuple[Plan, str]:
        """The plan to train with, and why."""
        try:
            plans = candidates(
                plan, module, self.written, several=self.several, fuses_head=fuses_head()
            )
            key = key_of(module, loss, batch, [*plans, *map(recorded, plans)])
        except Exception as unable:  # what nobody has seen may fail here; training need not
            return plan, f"no other plan was tried: {first_line(unable)}"
        if len(plans) == 1:
            return plans[0], "only one plan was left to try"
        contest = Contest(
            module, loss, batch, make_run, self.device, self.budget_seconds, self.say, self.begin
        )
        if answer := self.recalled(key, plans, contest.rows):
            return answer
        self.try_all(contest, plans)
        self.try_smaller(contest, plans)
        self.try_exact(contest)
        contest.end()
        self.events += [f"tuning: {trial}" for trial in contest.trials]
        if contest.best is None:
            return plan, f"no plan could be tried: {contest.trials[0].dropped}"
        because, self.step_seconds = (
            explain(contest.best, contest.trials),
            contest.best.step_seconds,
        )
        keep(key, self.name, contest.trials, contest.best, because)
        return contest.best.plan, because

    def recalled(self, key: str, plans: list[Plan], rows: int) -> tuple[Plan, str] | None:
        """What an earlier start found for the same module, batch, device and software."""
        found = recall(key, self.name)
        known = [*plans, *map(recorded, plans)]
        known += [half for plan in plans for half in in_micro_batches(plan, rows)]
        known += map(made_exact, known[:])
        chosen = next((plan for plan in known if found and words_of(plan) == found["plan"]), None)
        if found is None or chosen is None:  # None: damaged
            return None
        self.step_seconds = found["step_seconds"]
        return chosen, f"{found['because']} (tried {found['date']})"

    def say(self, line: str) -> None:
        if not self.silent:
            sys.stderr.write(f"{line}\n")

    def begin(self, what: str, plan: Plan) -> None:
        """On a terminal, name the plan while it compiles; its result is written over that."""
        if not self.silent and sys.stderr.isatty():
            sys.stderr.write(f"{what}: {words_of(plan)}: …\r")
            sys.stderr.flush()

    @property
    def name(self) -> str:
        """Of the device, in the cache."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return self.device.type

    def try_all(self, contest: Contest, plans: list[Plan]) -> None:
        """Each plan until the budget is spent, with a line for each as it passes."""
        for number, plan in enumerate(plans, 1):
            if (spent := contest.spent) > self.budget_seconds:
                late = f"{spent:.0f} s were spent, and {TUNE}{self.budget_seconds:g} was allowed"
                contest.leave_out(plan, late)
                continue
            trial = contest.enter(f"tuning {number} of {len(plans)}", plan)
            if plan.compile == "whole" and not plan.kernels:
                self.try_recorded(contest, trial)
        if contest.best is not None and not contest.best.plan.graphs:
            self.try_recorded(contest, contest.best)

    def try_smaller(self, contest: Contest, plans: list[Plan]) -> None:
        """Where memory was too short for all, the same in micro-batches that fit."""
        if not self.written.isdisjoint({"micro", "accumulate"}):
            return
        for smaller in zip(*(in_micro_batches(plan, contest.rows) for plan in plans)):
            short = any("out of memory" in trial.dropped for trial in contest.trials)
            if contest.best is not None or not short:
                return
            self.try_all(contest, list(smaller))

    def try_recorded(self, contest: Contest, base: Trial) -> None:
        """A whole plan with its steps recorded, where steps wait for the host."""
        plan = recorded(base.plan)
        tried = any(trial.plan == plan for trial in contest.trials)
        whole = base.plan.compile == "whole" and not base.dropped
        if tried or not whole or not self.may_record:
            return
        share, left = base.host_seconds / base.step_seconds, contest.left
        if share < LATE:
            busy = f"the host needs {share:.0%} of a step, and would gain nothing"
            contest.leave_out(plan, busy)
        elif left < base.first_seconds:
            late = f"it starts in about {base.first_seconds:.0f} s, and {left:.0f} are left"
            contest.leave_out(plan, late)
        else:
            contest.enter("tuning, recorded", plan)

    @property
    def may_record(self) -> bool:
        return self.device.type == "cuda" and "graphs" not in self.written and not self.several

    def may_repeat(self, plan: Plan) -> bool:
        """Whether deterministic algorithms are to be tried: a processor's repeat anyway."""
        free = "exact" not in self.written and not plan.exact.runs
        return self.device.type == "cuda" and free and not self.several

    def try_exact(self, contest: Contest) -> None:
        """The best plan with deterministic algorithms, dropped where these cost anything."""
        best = contest.best
        if best is None or not self.may_repeat(best.plan):
            return
        plan, left = made_exact(best.plan), contest.left
        if left < best.first_seconds:
            late = f"it starts in about {best.first_seconds:.0f} s, and {left:.0f} are left"
            contest.leave_out(plan, late)
            return
        contest.enter("tuning, the same bits in every run", plan, wins=price_of_exact)


def price_of_exact(trial: Trial, best: Trial) -> str:
    """What the same bits in every run cost; nothing where they are free."""
    price, _ = time_ratio(trial, best)
    more = trial.peak_bytes > FREE * best.peak_bytes
    if price <= FREE and not more:
        return ""
    what = f"{trial.peak_bytes / GIB:.2f} GiB" if more else f"{price:.3f} of the time"
    return f"the same bits in every run cost {what}"


def made_exact(plan: Plan) -> Plan:
    return replace(plan, exact=Exact(runs=True, free=True))


def explain(best: Trial, trials: list[Trial]) -> str:
    """Why the best plan was chosen, with its time and memory."""
    ended = [trial for trial in trials if not trial.dropped]
    because = f"the fastest of {len(ended)} tried here, {1e3 * best.step_seconds:.3g} ms a step"
    eager = next((one for one in ended if not one.plan.compile), best)
    if best.plan.compile and eager is not best:
        because += f" against {1e3 * eager.step_seconds:.3g} ms without compilation"
    if best.peak_bytes:
        because += f", {best.peak_bytes / GIB:.2f} GiB"
    plain = next((one for one in ended if is_plain(one.plan)), best)
    if best.peak_bytes > plain.peak_bytes:
        because += f" (compiled without kernels: {plain.peak_bytes / GIB:.2f} GiB)"
    if best.plan.exact.free:
        because += "; the same bits in every run cost nothing here"
    return because


def is_plain(plan: Plan) -> bool:
    """Whether it is compiled as a user would write it."""
    return bool(plan.compile) and not plan.kernels and not plan.graphs


def make_tuner(
    words: list[str],
    device: torch.device,
    *,
    place: Place,
    whole: bool,
    exact: bool,
    compiles: bool,
) -> Tuner | None:
    """The tuner that the words of an automatic plan ask for; None where nothing is to be tried.

    Args:
        whole: every rank has a whole copy of the module.
    """
    budget = read_budget(words)
    if budget is None:  # a processor's first steps are not worth a minute of compilation
        budget = BUDGET_SECONDS if device.type == "cuda" and compiles else 0.0
    # Trials differ from start to start, and a run that must give the same bits may not.
    if not budget or exact or not whole:
        return None
    written = frozenset(word.partition("=")[0] for word in words)
    return Tuner(budget, written, device, several=place.num_ranks > 1, silent=place.rank > 0)
