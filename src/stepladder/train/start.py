"""Starting a run: from what the user hands over to something that can take steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from stepladder.errors import ModelError, PlanError, require_count, require_type
from stepladder.plan import Optimizer, Plan, Rate
from stepladder.plan.automatic import is_automatic
from stepladder.plan.options import Exact
from stepladder.plan.refit import spread
from stepladder.train.checkpointing.rank_state import check_state
from stepladder.train.health.nonfinite import Health
from stepladder.train.optimizer.given_optimizer import GivenOptimizer, words_of_given
from stepladder.train.optimizer.read_given import read_given
from stepladder.world import Place, join_world
from stepladder.world.seed import fix_library_algorithms
from stepladder.world.world import connect

from .build_run import build, settle_here
from .module_inputs import arranged_sample
from .run import Run
from .tuning.auto_plan import Choice, choose_plan
from .tuning.rank_plan import agree
from .tuning.tuned_run import make_tuning


def climb(
    model: nn.Module,
    *,
    loss: str | Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: str | Optimizer | torch.optim.Optimizer | Callable[..., Any] | None = None,
    clip: float | None = None,
    plan: str | Plan = "auto",
    sample: Any = None,
    rate: str | Rate | Callable[..., Any] | LRScheduler | None = "constant",
    seed: int = 0,
    device: str | torch.device = "auto",
    nonfinite: str = "stop",
    exact: bool = False,
    timeout_seconds: float = 600,
) -> Run:
    """Take a module up the ladder: a run whose `step` learns from one global batch.

    Called on one process, or on every rank that torchrun started; the module is changed in place
    and keeps its class and parameter names.

    Args:
        loss: a name, a function of (outputs, targets) that is a mean over valid targets, or a dict
            of such terms, which are added up; None for a module whose output holds its own. A loss
            that is a module is trained too where it has parameters; optimizer groups see them as
            "loss.NAME".
        optimizer: text such as "adamw lr=3e-4 clip=1", a torch optimizer of the module's
            parameters, or its class or a function that makes one of the parameters it is given;
            replaces the plan's.
        clip: the largest norm of all gradients together, as "clip=1" in the text of an optimizer.
        plan: text such as "bf16 zero3 micro=4", a `Plan`, or "auto": what ran fastest in trials on
            copies of the module with the first batch. "auto tune=20" gives them so many seconds,
            "auto tune=off" none. On several ranks a plan without a layout is data parallel.
        sample: one batch, for the trials of "auto" (else the first step's is used); needed to fit
            a recomputation budget, and to weigh the stages of a pipeline where the module does not
            read tokens.
        rate: the learning-rate schedule: text such as "cosine warmup=100 steps=1000", a function
            from the step to a share of the learning rate, or a torch scheduler, its class or a
            function that makes it of an optimizer; it then takes a step after each of the run's.
        seed: of dropout and every other random number that a step draws.
        device: "auto", "cpu", "cuda", or a torch.device.
        nonfinite: what happens after a loss or gradient that is NaN or Inf, whose update is always
            skipped: "stop" raises when a report is read (on several ranks, at the next step of
            those that do not read it), "skip" goes on, "backoff" goes on with half the learning
            rate.
        exact: only algorithms that give the same bits each time, as the plan's word `exact=runs`;
            its word `exact=ranks` gives them on any number of ranks too.
        timeout_seconds: how long ranks wait for each other before the missing one is named.

    >>> import torch, stepladder as sl
    >>> model = torch.nn.Linear(4, 2)
    >>> run = sl.climb(model, loss="cross_entropy", optimizer="adamw lr=3e-4", plan="fp32 micro=4")
    >>> report = run.step((torch.randn(8, 4), torch.randint(0, 2, (8,))))
    >>> report.step, report.tokens
    (0, 8)
    """
    health, device = Health(nonfinite), str(device)
    check_arguments(model, clip, seed, exact, timeout_seconds)
    sample = arranged_sample(sample, model, loss)
    place = Place.from_environment()
    code = None if optimizer is None else read_given(optimizer, model, loss)
    given = read_optimizer(optimizer, code, clip)
    if isinstance(plan, Plan):
        choice = Choice(plan.check())
    else:
        choice = choose_plan(plan, device, place, model=model, sample=sample, optimizer=given)
    if not isinstance(plan, Plan) and place.num_ranks > 1 and is_automatic(plan.split()):
        connect(device, timeout_seconds=timeout_seconds, facts={"plan": plan})
        choice = Choice(*agree(choice.plan, choice.because))
    choice = spread_choice(exact_choice(choice, exact, plan), place.num_ranks)
    if given is not None:
        choice = replace(choice, plan=replace(choice.plan, optimizer=given))
    elif clip is not None:
        clipped = choice.plan.optimizer.change([f"clip={clip}"])
        choice = replace(choice, plan=replace(choice.plan, optimizer=clipped))
    settled = settle_here(choice.plan, device, place)
    words = str(settled.plan)
    world = join_world(settled.layout, device, timeout_seconds=timeout_seconds, plan=words)
    tuning = make_tuning(plan, world, device, loss, seed, settled=settled, given=code)
    if tuning is not None and sample is not None:
        choice = tuning.choose(choice, model, sample)
        settled = settle_here(choice.plan, device, place)
    run = build(
        model, settled, world,
        loss=loss, sample=sample, rate=rate, seed=seed,
        health=health, because=choice.because, given=code,
    )  # fmt: skip
    if tuning is not None:
        tuning.hand_over(run, at_first_step=sample is None and settled.one_rank)
    return run


def exact_choice(choice: Choice, exact: bool, plan: Any) -> Choice:
    """The choice with the same bits each time, where that is asked for."""
    check_exact(plan, exact)
    if exact and (choice.plan.exact.free or not choice.plan.exact.runs):
        choice = replace(choice, plan=replace(choice.plan, exact=Exact(runs=True)))
    if choice.plan.exact.runs:
        fix_library_algorithms()
    return choice


def check_exact(plan: Any, exact: bool) -> None:
    """Refuse `exact=True` beside a plan's words that say otherwise."""
    words = plan.split() if isinstance(plan, str) else ()
    for word in ("exact=none", "exact=free"):
        if exact and word in words:
            problem = f"exact=True asks for the same bits, and the plan says {word}"
            raise PlanError("exact", problem, "Leave one of them out.")


def check_arguments(model: Any, clip: Any, seed: Any, exact: Any, timeout_seconds: Any) -> None:
    """Refuse what would lead to errors far from here, or to none: other types, lost state."""
    if not isinstance(model, nn.Module):
        what = "the class" if isinstance(model, type) else "a"
        name = model.__name__ if isinstance(model, type) else type(model).__name__
        remedy = "Give an object of it." if isinstance(model, type) else "Give a torch.nn.Module."
        raise ModelError("model", f"{what} {name} is not a module", remedy)
    # On the object: a scripted module's class cannot be asked, and an object may have its own.
    if getattr(model.forward, "__func__", None) is nn.Module.forward:
        raise ModelError(type(model).__name__, "has no forward", "Define forward(self, inputs).")
    require_count("seed", seed, "a seed", least=0)
    require_type("exact", exact, bool, "Use True or False.")
    if clip is not None and (not is_number(clip) or not clip > 0):
        problem = f"{clip!r} is not a norm to clip to"
        raise PlanError("clip", problem, "Use a number above 0, such as 1.0, or leave it out.")
    if not is_number(timeout_seconds) or not timeout_seconds > 0:
        problem = f"{timeout_seconds!r} is not a number of seconds"
        raise PlanError("timeout_seconds", problem, "Use a number above 0, such as 600.")
    check_state(model)


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def spread_choice(choice: Choice, ranks: int) -> Choice:
    """The choice on these ranks: each has a copy where the plan says nothing of several."""
    plan = spread(choice.plan, ranks)
    if plan == choice.plan:
        return choice
    said = f"the plan names no layout: each of {ranks} ranks holds a whole copy"
    return Choice(plan, "; ".join(filter(None, (choice.because, said))))


def read_optimizer(given: Any, code: GivenOptimizer | None, clip: float | None) -> Optimizer | None:
    """The words of what was given for an optimizer; None where the plan's stays."""
    if given is None:
        return None
    if code is not None:
        words = words_of_given(code)
    else:
        words = Optimizer.parse(given) if isinstance(given, str) else given
    if clip is not None and words.clip not in (None, clip):
        problem = f"{clip} is given beside an optimizer with clip={words.clip}"
        raise PlanError("clip", problem, "Leave one of them out.")
    return words if clip is None else words.change([f"clip={clip}"])
