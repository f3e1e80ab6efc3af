"""A test of guessed tensor-parallel cuts: a block must compute the same before and after it is cut.

Names and shapes show which linears form a pair, but not what a block does between them. So copies
of the blocks with random weights run on random numbers, whole and then cut, on the real ranks, in
training and in evaluation mode; a block that takes more than one tensor is called as its model
calls it. A copy's output, the gradient of its input and those of all its
parameters must agree; a head count that was not divided, or a norm across the cut, shows in one of
them. Blocks of the same structure and attributes are tried once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepladder.errors import ModelError
from stepladder.model.tracing.copy_module import copy_module
from stepladder.plan import FP32
from stepladder.rungs.precision.precision import float32_matmul_mode
from stepladder.rungs.trial_copy import (
    WithoutDropout,
    randomise,
    spread_of,
    worst_difference,
)
from stepladder.seam.modules import module_attributes
from stepladder.seam.pytree import tree_leaves

from .block_calls import BlockCall
from .local_compute import flows

ROWS, LENGTHS = 2, (64, 8)  # the longest that a block takes
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
NARROW_TOLERANCE = 5e-2  # in any narrower type
REMEDY = "Give the model an `anatomy` that names its cuts, or use shard or pipeline."

Results = dict[str, Tensor | None]


def try_cuts(
    blocks: Sequence[tuple[str, nn.Module]],
    cuts: Mapping[str, str],
    device: torch.device,
    cut: Callable[[str, nn.Module], None],
    capture: Callable[[], Mapping[str, BlockCall]] = dict,
) -> ModelError | None:
    """Raise unless copies of the blocks compute, once `cut` has cut them, what they did.

    Args:
        capture: finds what the model gives each block; for blocks that take more than one tensor.

    Returns the refusal of the first block that could not be tried.
    """
    tried: set[Hashable] = set()
    cuda = [device] if device.type == "cuda" else []
    for seed, (name, block) in enumerate(blocks):
        kind = structure_of(block)
        if kind in tried:
            continue
        tried.add(kind)
        first = next(name for name, kind in cuts.items() if kind == "column")
        width: Any = block.get_submodule(first)
        with (
            torch.random.fork_rng(cuda),
            torch.enable_grad(),
            float32_matmul_mode(FP32, device),
            WithoutDropout(),
        ):
            trial = prepare(name, block, width.in_features, device, seed, capture)
            if isinstance(trial, ModelError):
                return trial
            trial.check(cut)
    return None


def structure_of(block: nn.Module) -> Hashable:
    """What two blocks that compute alike have in common: types, attributes and shapes."""
    plain = (bool, int, float, str, tuple, type(None))
    return tuple(
        (
            name,
            type(part),
            tuple(
                (word, repr(value))
                for word, value in sorted(module_attributes(part).items())
                if isinstance(value, plain)
            ),
            tuple((word, p.shape) for word, p in part.named_parameters(recurse=False)),
        )
        for name, part in block.named_modules()
    )


@dataclass(frozen=True, slots=True)
class Trial:
    """One block, and what copies of it are given."""

    name: str
    block: nn.Module  # with random weights
    call: BlockCall
    given: Tensor  # random numbers for what flows

    def check(self, cut: Callable[[str, nn.Module], None]) -> None:
        """Raise unless a copy, once cut, computes what the block does."""
        changed = copy_module(self.block)
        cut(self.name, changed)
        for training in (True, False):
            whole = run_block(copy_module(self.block), self.call, self.given, training)
            try:
                found = run_block(changed, self.call, self.given, training)
            except Exception as problem:
                raise self.refusal(first_line(problem)) from problem
            what, off = worst_difference(found, whole)
            limit = TOLERANCE.get(self.given.dtype, NARROW_TOLERANCE)
            if off <= limit:
                continue
            again = run_block(copy_module(self.block), self.call, self.given, training, draw=1)
            if not training or worst_difference(again, whole)[1] <= limit:
                raise self.refusal(f"{what} differs")

    def refusal(self, why: str) -> ModelError:
        kind = type(self.block).__name__
        problem = (
            f"a {kind} whose linears look like pairs, computes something else once cut ({why})"
        )
        return ModelError(self.name, problem, REMEDY)


def prepare(
    name: str,
    block: nn.Module,
    width: int,
    device: torch.device,
    seed: int,
    capture: Callable[[], Mapping[str, BlockCall]],
) -> Trial | ModelError:
    """A copy with random weights, and a call that it takes: the longest row of random numbers, else
    what the model gives it."""
    copy = copy_module(block)
    randomise(copy, {name: spread_of(p) for name, p in block.named_parameters()}, seed)
    dtype = next(p.dtype for p in block.parameters() if p.is_floating_point())
    draw = torch.Generator().manual_seed(seed)  # on the CPU: the same numbers on every rank
    why = ""
    for length in (*LENGTHS, None):
        call = BlockCall.of_shape(ROWS, length, width) if length else capture().get(name)
        if call is None or call.shape is None:
            continue
        given = torch.randn(call.shape, generator=draw).to(device, dtype)
        try:
            run_block(copy_module(copy), call, given, training=True)
            return Trial(name, copy, call, given)
        except Exception as error:
            why = first_line(error)
    return ModelError(
        name,
        f"a {type(block).__name__}, cannot be tried on one tensor of shape "
        f"{(ROWS, LENGTHS[-1], width)}, and its cuts are a guess ({why})",
        f"Give climb sample=batch. {REMEDY}",
    )


def run_block(
    block: nn.Module, call: BlockCall, given: Tensor, training: bool, draw: int = 0
) -> Results:
    """A block's answer and gradients, by what they are; parameters that were cut made whole."""
    torch.manual_seed(draw)
    given = given.clone().requires_grad_()
    if not training:
        block.eval()
    elif not block.training:
        block.train()
    made = next(filter(flows, tree_leaves(call.run(block, given))))
    weights = torch.linspace(-1, 1, made.shape[-1], device=made.device)
    trained = {name: p for name, p in block.named_parameters() if p.requires_grad}
    total = (made * weights.to(made.dtype)).sum()
    gradient, *gradients = torch.autograd.grad(total, [given, *trained.values()], allow_unused=True)
    seen: Results = {"its answer": made.detach(), "its input's gradient": gradient}
    for label, found in zip(trained, gradients):
        seen[f"the gradient of {label}"] = (
            found.full_tensor() if isinstance(found, DTensor) else found
        )
    return seen


def first_line(problem: Exception) -> str:
    return str(problem).split("\n", 1)[0][:120]
