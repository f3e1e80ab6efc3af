"""Starting a run: from what the user hands over to something that can take steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from stepladder.errors import PlanError
from stepladder.plan import Optimizer, Plan, Rate
from stepladder.train.checkpointing.rank_state import check_state
from stepladder.train.health.nonfinite import Health
from stepladder.world import Place, join_world
from stepladder.world.world import connect

from .build_run import build, settle_here
from .run import Run
from .tuning.auto_plan import Choice, choose_plan, is_automatic
from .tuning.rank_plan import agree
from .tuning.tuned_run import make_tuning


def climb(
    model: nn.Module,
    *,
    loss: str | Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: str | Optimizer | None = None,
    plan: str | Plan = "auto",
    sample: Any = None,
    rate: str | Rate = "constant",
    seed: int = 0,
    device: str = "auto",
    nonfinite: str = "stop",
    exact: bool = False,
    timeout_seconds: float = 600,
) -> Run:
    """Take a module up the ladder: a run whose `step` learns from one global batch.

    Called on one process, or on every rank that torchrun started; the module is changed in place
    and keeps its class and parameter names.

    Args:
        loss: a name, a function of (outputs, targets) that is a mean over valid targets, or None
            for a module whose output holds its own. A loss that is a module is trained too where it
            has parameters; optimizer groups see them as "loss.NAME".
        optimizer: text such as "adamw lr=3e-4 clip=1"; replaces the plan's.
        plan: text such as "bf16 zero3 micro=4", a `Plan`, or "auto": what ran fastest in trials on
            copies of the module with the first batch. "auto tune=20" gives them so many seconds,
            "auto tune=off" none.
        sample: one batch, for the trials of "auto" (else the first step's is used); needed to fit
            a recomputation budget, and to weigh the stages of a pipeline where the module does not
            read tokens.
        rate: the learning-rate schedule, text such as "cosine warmup=100 steps=1000".
        seed: of dropout and every other random number that a step draws.
        device: "auto", "cpu" or "cuda".
        nonfinite: what happens after a loss or gradient that is NaN or Inf, whose update is always
            skipped: "stop" raises when a report is read (on several ranks, at the next step of
            those that do not read it), "skip" goes on, "backoff" goes on with half the learning
            rate.
        exact: only algorithms that give the same bits each time.
        timeout_seconds: how long ranks wait for each other before the missing one is named.

    >>> import torch, stepladder as sl
    >>> model = torch.nn.Linear(4, 2)
    >>> run = sl.climb(model, loss="cross_entropy", optimizer="adamw lr=3e-4", plan="fp32 micro=4")
    >>> report = run.step((torch.randn(8, 4), torch.randint(0, 2, (8,))))
    >>> report.step, report.tokens
    (0, 8)
    """
    health = Health(nonfinite)
    check_state(model)
    place = Place.from_environment()
    given = None if optimizer is None else read_optimizer(optimizer)
    if isinstance(plan, Plan):
        choice = Choice(plan)
    else:
        choice = choose_plan(plan, device, place, model=model, sample=sample, optimizer=given)
    if not isinstance(plan, Plan) and place.num_ranks > 1 and is_automatic(plan.split()):
        connect(device, timeout_seconds=timeout_seconds, facts={"plan": plan})
        choice = Choice(*agree(choice.plan, choice.because))
    if given is not None:
        choice = replace(choice, plan=replace(choice.plan, optimizer=given))
    settled = settle_here(choice.plan, device, place)
    world = join_world(
        settled.layout, device, timeout_seconds=timeout_seconds, plan=str(settled.plan)
    )
    tuning = make_tuning(plan, world, device, loss, seed, exact=exact)
    if tuning is not None and sample is not None:
        choice = tuning.choose(choice, model, sample)
        settled = settle_here(choice.plan, device, place)
    run = build(
        model, settled, world,
        loss=loss, sample=sample, rate=rate, seed=seed,
        health=health, exact=exact, because=choice.because,
    )  # fmt: skip
    if tuning is not None:
        run.events += tuning.tuner.told
        run.retune = tuning.retune if sample is None else None
    return run


def read_optimizer(given: str | Optimizer) -> Optimizer:
    if not isinstance(given, (str, Optimizer)):
        problem = f"{type(given).__name__} is not the text of an optimizer"
        raise PlanError("optimizer", problem, 'Write optimizer="adamw lr=3e-4".')
    return Optimizer.parse(given) if isinstance(given, str) else given
