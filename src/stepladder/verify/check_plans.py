"""Whether plans can be run at all, asked before any rank is started: all problems at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from stepladder.data import SampleOrder, load_batch
from stepladder.errors import PlanError, StepladderError, raise_all
from stepladder.hardware import Cluster, find_device
from stepladder.model import describe
from stepladder.plan import BatchSplit, Plan
from stepladder.plan.settled.settle import legality_problems
from stepladder.planner import plan_problems
from stepladder.workload import Facts
from stepladder.world import detect_cluster

from .subjects import Subject


def check_plans(subject: Subject, plans: Sequence[Plan], device: str) -> None:
    """Raise every rule that one of these settled plans breaks for this subject, with its plan."""
    facts = facts_of(subject)
    problems = {}
    for plan in dict.fromkeys(plans):
        short = replace(plan, batch=BatchSplit(), optimizer=Plan().optimizer)
        for found in problems_of(facts, plan, device):
            problem = f"{found.problem.rstrip('.')} (in '{short}')"
            problems[problem] = PlanError(found.field, problem, found.remedy)
    raise_all(problems.values())


def facts_of(subject: Subject) -> Facts | None:
    """What is known of the subject's module; None where only running it will tell."""
    try:
        module, samples, _ = subject.made()
        row = load_batch(samples, SampleOrder(len(samples)), np.arange(1))
        return describe(module, sample=row)
    except StepladderError as refused:
        # There is none: no rank will find it either.
        if refused.field in ("model", "data", "sample", "loss"):
            raise
    except Exception:  # of a module nobody has seen: what is wrong with it, the ranks say
        return None
    return None


def problems_of(facts: Facts | None, plan: Plan, device: str) -> Iterator[PlanError]:
    ranks = plan.layout.num_ranks
    if facts is None:
        yield from legality_problems(plan, ranks, open_batch=True)
    else:
        yield from plan_problems(facts, plan, cluster_of(device, ranks), trial=True)


def cluster_of(device: str, ranks: int) -> Cluster:
    if device != "cpu":
        return detect_cluster(processes=ranks)
    cpu = find_device("CPU")
    return Cluster(cpu, 1, ranks, cpu.link, cpu.network)
