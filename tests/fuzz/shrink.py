"""Making a failing problem smaller while it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from .problems.plans import Layout
from .problems.problem import STEPS, Problem

PLAIN_MODULE = ("tied", "shared", "cap", "final_norm", "positions", "sequential", "padding_idx",
                "max_norm", "dtype", "head_bias")  # fmt: skip
Fails = Callable[[Problem], bool]


def shrink(problem: Problem, fails: Fails, *, trials: int = 60) -> Problem:
    """The smallest problem found that fails in the same way, within so many trials."""
    left, progress = trials, True
    while progress and left > 0:
        progress = False
        for smaller in candidates(problem):
            if left <= 0:
                break
            left -= 1
            if fails(smaller):
                problem, progress = smaller, True
                break
    return problem


def candidates(problem: Problem) -> Iterator[Problem]:
    """Problems with one thing less, the largest things first."""
    if problem.again:
        yield replace(problem, again=None)
    if problem.same_again:
        yield replace(problem, same_again=False)
    yield from smaller_modules(problem)
    yield from smaller_losses(problem)
    yield from smaller_data(problem)
    yield from smaller_optimizers(problem)
    yield from smaller_plans(problem)


def smaller_modules(problem: Problem) -> Iterator[Problem]:
    module = problem.module
    blocks, extras = module["blocks"], module["extras"]
    for index in range(len(extras)):
        yield with_module(problem, extras=[*extras[:index], *extras[index + 1 :]])
    for index in range(len(blocks)):
        fewer = [*blocks[:index], *blocks[index + 1 :]]
        shared = module.get("shared") if len(fewer) > 1 else []
        yield with_module(problem, blocks=fewer, shared=shared or [])
    if module.get("output", "tensor") != "tensor":
        yield with_module(problem, output="tensor")
    for key in PLAIN_MODULE:
        if module.get(key):
            kept = {name: value for name, value in module.items() if name != key}
            yield replace(problem, module={**kept, "head_bias": False})
    for index, block in enumerate(blocks):
        for key in [key for key in block if key not in ("type", "heads", "norm")]:
            less = {name: value for name, value in block.items() if name != key}
            yield with_module(problem, blocks=[*blocks[:index], less, *blocks[index + 1 :]])
        if block.get("norm", "none") != "none":
            less = {**block, "norm": "none"}
            yield with_module(problem, blocks=[*blocks[:index], less, *blocks[index + 1 :]])


def with_module(problem: Problem, **changes: Any) -> Problem:
    return replace(problem, module={**problem.module, **changes})


def smaller_losses(problem: Problem) -> Iterator[Problem]:
    loss = problem.loss
    for key in [key for key in loss if key not in ("type", "ignore_index")]:
        yield replace(problem, loss={k: v for k, v in loss.items() if k != key})
    if problem.data["classes"] and loss != {"type": "cross_entropy"}:
        yield replace(problem, loss={"type": "cross_entropy"})


def smaller_data(problem: Problem) -> Iterator[Problem]:
    data, unit = problem.data, problem.layout.ways * problem.layout.passes
    if data.get("ignored"):
        yield replace(problem, data={k: v for k, v in data.items() if k not in ("ignored",)})
    if data["feed"] != "global":
        yield replace(problem, data={**data, "feed": "global"})
    least = max(2, unit)
    for rows in ([least] * STEPS, [max(data["rows"])] * STEPS):
        if rows != data["rows"] and sum(rows) <= sum(data["rows"]):
            yield replace(problem, data={**data, "rows": rows, "evaluated": rows[0]})


def smaller_optimizers(problem: Problem) -> Iterator[Problem]:
    how = problem.optimizer
    for key in ("clip", "group", "wd", "momentum", "rate"):
        if key in how:
            yield replace(problem, optimizer={k: v for k, v in how.items() if k != key})
    if how["name"] != "sgd":
        yield replace(problem, optimizer={"name": "sgd", "lr": 0.1})


def smaller_plans(problem: Problem) -> Iterator[Problem]:
    words, ranks = problem.layout.plan.split(), problem.layout.ranks
    if ranks == 4:
        fewer = [w for w in words if w not in ("shard=2", "replicate=2")]
        fewer = [w.replace("=4", "=2") for w in fewer]
        yield replace(problem, layout=Layout(" ".join(fewer), 2))
    for index in range(1, len(words)):
        rest = " ".join([*words[:index], *words[index + 1 :]])
        if not words[index].startswith(("shard", "replicate", "tensor", "pipeline", "context")):
            yield replace(problem, layout=Layout(rest, ranks))
    if ranks > 1:
        alone = [w for w in words if w.startswith(("fp32", "micro", "accumulate", "recompute"))]
        yield replace(problem, layout=Layout(" ".join(alone), 1))
