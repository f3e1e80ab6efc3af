"""Choosing among plans that compute the same by trying each on the module and the batch.

Trials run on copies, one after the other, until the budget is spent; the plan without compilation
comes first, since what the others compute is held against it. Of the plans within 2 % of the
fastest the one that needs the least memory is taken. What was found is kept for the next start.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from stepladder.errors import first_line
from stepladder.plan import Plan
from stepladder.plan.automatic import TUNE, read_budget
from stepladder.plan.options import GIB, Exact
from stepladder.world import Place

from .candidates import candidates, recorded
from .remembered import keep, key_of, recall
from .trial import MakeRun, Trial, try_plan, words_of

BUDGET_SECONDS = 60.0
CLOSE = 1.02  # as fast as the fastest, as far as a few steps can tell
FREE = 1.01  # of the time and of the memory: as far as a few steps can tell, nothing
LATE = 0.25  # the host's share of a step, below which launching kernels at once gains nothing


@dataclass(slots=True)
class Tuner:
    """Tries plans when a first batch is known."""

    budget_seconds: float
    written: frozenset[str]  # words of the plan that the user wrote
    device: torch.device
    several: bool = False  # ranks, each of which tries the plans alone
    silent: bool = False  # another rank says what is tried
    told: list[str] = field(default_factory=list)  # what was tried, for the run's events

    def choose(
        self, plan: Plan, module: nn.Module, loss: Any, batch: Any, make_run: MakeRun
    ) -> tuple[Plan, str]:
        """The plan to train with, and why."""
        try:
            plans = candidates(plan, module, self.written, several=self.several)
            key = key_of(module, loss, batch, [*plans, *map(recorded, plans)])
        except Exception as unable:  # what nobody has seen may fail here; training need not
            return plan, f"no other plan was tried: {first_line(unable)}"
        if len(plans) == 1:
            return plans[0], "only one plan was left to try"
        if answer := self.recalled(key, plans):
            return answer
        began = time.perf_counter()
        trials = self.try_all(plans, module, loss, batch, make_run)
        trials += self.try_recorded(trials, began, module, loss, batch, make_run)
        chosen, because = decide(trials, plan)
        left = self.budget_seconds - (time.perf_counter() - began)
        if chosen in trials and self.may_repeat(chosen.plan):
            trial = self.try_exact(chosen, left, module, loss, batch, make_run)
            trials.append(trial)
            if not trial.dropped:
                chosen, because = trial, f"{because}; the same bits in every run cost nothing here"
        self.told += [f"tuning: {trial}" for trial in trials]
        if chosen in trials:
            keep(key, self.name, trials, chosen, because)
        return chosen.plan, because

    def recalled(self, key: str, plans: list[Plan]) -> tuple[Plan, str] | None:
        """What an earlier start found for the same module, batch, device and software."""
        found = recall(key, self.name)
        known = [*plans, *map(recorded, plans)]
        known += map(made_exact, known[:])
        chosen = next((plan for plan in known if found and words_of(plan) == found["plan"]), None)
        if found is None or chosen is None:  # None: damaged
            return None
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

    def try_all(
        self, plans: list[Plan], module: nn.Module, loss: Any, batch: Any, make_run: MakeRun
    ) -> list[Trial]:
        """Each plan until the budget is spent, with a line for each as it passes."""
        began, trials = time.perf_counter(), list[Trial]()
        reference: Trial | None = None
        for number, plan in enumerate(plans, 1):
            spent = time.perf_counter() - began
            if spent > self.budget_seconds:
                late = f"{spent:.0f} s were spent, and {TUNE}{self.budget_seconds:g} was allowed"
                trials += [Trial(left, dropped=late) for left in plans[number - 1 :]]
                break
            self.begin(f"tuning {number} of {len(plans)}", plan)
            trial = try_plan(plan, module, loss, batch, make_run, self.device)
            if reference is not None and not trial.dropped:
                trial = trial.held_against(reference)
            elif not trial.dropped:
                reference = trial
            trials.append(trial)
            self.say(f"tuning {number} of {len(plans)}: {trial}")
        return trials

    def try_recorded(
        self,
        trials: list[Trial],
        began: float,
        module: nn.Module,
        loss: Any,
        batch: Any,
        make_run: MakeRun,
    ) -> list[Trial]:
        """The fastest whole plan with its steps recorded, where steps wait for the host."""
        whole = [one for one in trials if one.plan.compile == "whole" and not one.dropped]
        if self.device.type != "cuda" or "graphs" in self.written or self.several or not whole:
            return []
        base = min(whole, key=lambda one: one.step_seconds)
        plan, left = recorded(base.plan), self.budget_seconds - (time.perf_counter() - began)
        share = base.host_seconds / base.step_seconds
        if share < LATE:
            busy = f"the host needs {share:.0%} of a step, and would gain nothing"
            return [Trial(plan, dropped=busy)]
        if left < base.first_seconds:
            late = f"it starts in about {base.first_seconds:.0f} s, and {max(left, 0):.0f} are left"
            return [Trial(plan, dropped=late)]
        self.begin("tuning, recorded", plan)
        trial = try_plan(plan, module, loss, batch, make_run, self.device)
        reference = next(one for one in trials if not one.dropped)
        trial = trial if trial.dropped else trial.held_against(reference)
        self.say(f"tuning, recorded: {trial}")
        return [trial]

    def may_repeat(self, plan: Plan) -> bool:
        """Whether deterministic algorithms are to be tried: a processor's repeat anyway."""
        free = "exact" not in self.written and not plan.exact.runs
        return self.device.type == "cuda" and free and not self.several

    def try_exact(
        self,
        chosen: Trial,
        left: float,
        module: nn.Module,
        loss: Any,
        batch: Any,
        make_run: MakeRun,
    ) -> Trial:
        """The chosen plan with deterministic algorithms, dropped where these cost anything."""
        plan = made_exact(chosen.plan)
        if left < chosen.first_seconds:
            late = (
                f"it starts in about {chosen.first_seconds:.0f} s, and {max(left, 0):.0f} are left"
            )
            return Trial(plan, dropped=late)
        self.begin("tuning, the same bits in every run", plan)
        trial = try_plan(plan, module, loss, batch, make_run, self.device)
        if not trial.dropped:
            trial = trial.held_against(chosen)
        price = trial.step_seconds / chosen.step_seconds
        more = trial.peak_bytes > FREE * chosen.peak_bytes
        if not trial.dropped and (price > FREE or more):
            what = f"{trial.peak_bytes / GIB:.2f} GiB" if more else f"{price:.3f} of the time"
            trial = replace(trial, dropped=f"the same bits in every run cost {what}")
        self.say(f"tuning, the same bits in every run: {trial}")
        return trial


def made_exact(plan: Plan) -> Plan:
    return replace(plan, exact=Exact(runs=True, free=True))


def decide(trials: list[Trial], plan: Plan) -> tuple[Trial, str]:
    """The plan to train with; the given one where no trial ended well."""
    ended = [trial for trial in trials if not trial.dropped]
    if not ended:
        return Trial(plan), f"no plan could be tried: {trials[0].dropped}"
    fastest = min(trial.step_seconds for trial in ended)
    close = [trial for trial in ended if trial.step_seconds <= CLOSE * fastest]
    chosen = min(close, key=lambda trial: (trial.peak_bytes, trial.step_seconds))
    because = f"the fastest of {len(ended)} tried here, {1e3 * chosen.step_seconds:.3g} ms a step"
    eager = next((one for one in ended if not one.plan.compile), chosen)
    if chosen is not eager:
        because += f" against {1e3 * eager.step_seconds:.3g} ms without compilation"
    if chosen.peak_bytes:
        because += f", {chosen.peak_bytes / GIB:.2f} GiB"
    plain = next((one for one in ended if one.plan.compile and not one.plan.kernels), chosen)
    if chosen.peak_bytes > plain.peak_bytes:
        because += f" (compiled without kernels: {plain.peak_bytes / GIB:.2f} GiB)"
    return chosen, because


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
