"""A test of guessed tensor-parallel cuts: a block must compute the same before and after it is cut.

Names and shapes show which linears form a pair, but not what a block does between them. So one
block runs on a few random numbers, whole and then cut, on the real ranks. Its output, the gradient
of its input and those of the parameters that every rank has must agree; a head count that was not
divided, or a norm across the cut, shows in one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.errors import ModelError
from stepladder.rungs.parameter_shards import local

ROWS, LENGTH = 2, 8
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
NON_STREAMING = 5e-2  # relative to the largest number, in any narrower type
REMEDY = "Give the model an `anatomy` that names its cuts, or use shard or pipeline."


@dataclass(frozen=True, slots=True)
class Trial:
    name: str
    block: nn.Module
    given: Tensor
    whole: Mapping[str, Tensor]  # what the uncut block gave

    def check(self) -> None:
        """Raise unless the block, now cut, computes what it did."""
        try:
            cut = run_block(self.block, self.given)
        except Exception as problem:
            raise self.refusal(first_line(problem)) from problem
        for what, expected in self.whole.items():
            found = cut.get(what)
            if found is None or found.shape != expected.shape:
                continue  # a parameter that was cut
            limit = TOLERANCE.get(expected.dtype, NON_STREAMING) * expected.abs().max().clamp(
                min=1e-6
            )
            if not bool((found - expected).abs().max() <= limit):
                raise self.refusal(f"{what} differs")

    def refusal(self, why: str) -> ModelError:
        kind = type(self.block).__name__
        problem = (
            f"a {kind} whose linears look like pairs, computes something else once cut ({why})"
        )
        return ModelError(self.name, problem, REMEDY)


def try_cuts(named: tuple[str, nn.Module], cuts: Mapping[str, str], device: torch.device) -> Trial:
    """What one block computes while it is still whole."""
    name, block = named
    first: Any = block.get_submodule(next(cut for cut, kind in cuts.items() if kind == "column"))
    draw = torch.Generator().manual_seed(0)  # on the CPU: the same numbers on every rank
    given = torch.randn(ROWS, LENGTH, first.in_features, generator=draw)
    given = given.to(device, first.weight.dtype)
    try:
        return Trial(name, block, given, run_block(block, given))
    except Exception as problem:
        raise ModelError(
            name,
            f"a {type(block).__name__}, cannot be tried on one tensor of shape "
            f"{tuple(given.shape)}, and its cuts are a guess ({first_line(problem)})",
            REMEDY,
        ) from problem


def run_block(block: nn.Module, given: Tensor) -> dict[str, Tensor]:
    """A block's answer and gradients, by what they are."""
    given = given.clone().requires_grad_()
    training = block.training
    block.eval()  # without dropout
    try:
        made = block(given)
        made = made[0] if isinstance(made, tuple) else made
        (made * torch.linspace(-1, 1, made.shape[-1], device=made.device)).sum().backward()
    finally:
        block.train(training)
    seen = {"its answer": made.detach(), "its input's gradient": given.grad}
    for label, parameter in block.named_parameters():
        if parameter.grad is not None:
            seen[f"the gradient of {label}"] = local(parameter.grad)
        parameter.grad = None
    return {what: tensor for what, tensor in seen.items() if tensor is not None}


def first_line(problem: Exception) -> str:
    return str(problem).split("\n", 1)[0][:120]
