"""What each rank does for one cell: train under a plan, save, resume, and hand back its tensors."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

import stepladder as sl
from architectures import make_problem
from oracle import Tensors, copy_tensors, distance
from problem import STEPS, Problem
from stepladder.errors import NonFinite, StepladderError
from stepladder.world.world import forget_routes

SAVED = STEPS - 1  # steps before the checkpoint


@dataclass(frozen=True, slots=True)
class Trained:
    """What one rank found."""

    losses: list[float]
    tensors: Tensors
    resumed: float | None = None  # largest difference after a resume; None: not tried
    refused: str = ""  # the one line, where the plan was refused before the first step
    by_micro_batch: bool = False  # the run announced that BatchNorm sees one at a time


def train_on_rank(name: str, plan: str, masks: bool, folder: Path | None) -> Trained:
    """Train under the plan; with a folder, also save before the last step and resume."""
    # oneDNN raises, and torch catches, an error for each bf16 matmul on a CPU without bf16 units.
    torch.backends.mkldnn.enabled = "bf16" not in plan
    problem = make_problem(name, masks=masks)
    try:
        run = climb(problem, plan)
        losses = [take(run, problem.batches[0])]
    except NonFinite:
        raise
    except StepladderError as error:
        return Trained([], {}, refused=str(error))
    losses += [take(run, batch) for batch in problem.batches[1:SAVED]]
    if folder is not None:
        run.save(folder)
    losses.append(take(run, problem.batches[SAVED]))
    tensors, by_micro = whole_tensors(run.module), "BatchNorm sees one micro-batch" in run.because
    if folder is None:
        return Trained(losses, tensors, by_micro_batch=by_micro)
    again = make_problem(name, seed=2, masks=masks)
    resumed = resumed_difference(again, plan, folder, tensors)
    return Trained(losses, tensors, resumed, by_micro_batch=by_micro)


def climb(problem: Problem, plan: str) -> Any:
    return sl.climb(
        problem.module,
        loss=problem.loss,
        optimizer=f"sgd lr={problem.lr}",
        plan=plan,
        sample=problem.batches[0],
        device="cpu",
    )


def take(run: Any, batch: Any) -> float:
    return run.step(batch, rows="global").read().loss


def resumed_difference(problem: Problem, plan: str, folder: Path, expected: Tensors) -> float:
    """Resume from the checkpoint with other weights, take the last step, and compare."""
    run = climb(problem, plan)
    if run.resume(folder) is None:
        return float("inf")
    take(run, problem.batches[SAVED])
    found = whole_tensors(run.module)
    if found.keys() != expected.keys():
        return float("inf")
    return max((distance(found[name], expected[name]) for name in found), default=0.0)


def whole_tensors(module: torch.nn.Module) -> Tensors:
    return {name: whole(tensor) for name, tensor in copy_tensors(module).items()}


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; every rank calls it for the same tensors in the same order."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def free_groups() -> None:
    """Let go of earlier process groups, whose threads wake a hundred times a second."""
    forget_routes()
    gc.collect()
