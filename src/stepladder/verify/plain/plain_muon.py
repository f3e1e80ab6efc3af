"""Muon as written on paper: by singular values, in float64, a matrix at a time.

A part of the plain loop: like it, it shares no code with what it judges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.plan import Optimizer

Matrices = Callable[[Tensor], list[Tensor]]  # of a parameter, as views


class PlainMuon(torch.optim.Optimizer):
    """Muon for groups with matrices, torch's AdamW for the rest."""

    def __init__(self, groups: list[dict[str, Any]], how: Optimizer) -> None:
        super().__init__(groups, {})
        self.how = how
        others = [group for group in groups if group["matrices"] is None]
        self.adamw = others and torch.optim.AdamW(
            others, betas=how.betas, eps=how.eps, foreach=False
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.adamw:
            self.adamw.step()
        for group in self.param_groups:
            for p in group["params"] if group["matrices"] else ():
                if p.grad is not None:
                    self.update(p, group)

    def update(self, p: Tensor, group: Mapping[str, Any]) -> None:
        assert p.grad is not None
        state, memory = self.state[p], self.how.momentum
        mean = memory * state.get("mean", torch.zeros_like(p)) + (1 - memory) * p.grad
        state["mean"] = mean
        ahead = memory * mean + (1 - memory) * p.grad if self.how.nesterov == "on" else mean
        p *= 1 - group["lr"] * group["weight_decay"]
        for index, one in enumerate(group["matrices"](ahead)):
            rows, columns = one.shape
            update, factor = orthogonal(one, self.how.ns_steps), max(1, rows / columns) ** 0.5
            if self.how.adjust == "match_rms_adamw":
                factor = 0.2 * max(rows, columns) ** 0.5
            if self.how.variant == "normuon":
                known = state.get(index, torch.zeros(rows, 1, device=p.device))
                square = self.how.betas[1] * known
                square = square + (1 - self.how.betas[1]) * update.square().mean(1, keepdim=True)
                even = update / (square.sqrt() + self.how.eps)
                size = 1 / max(rows, columns) ** 0.5 * (rows * columns) ** 0.5
                if self.how.adjust == "original":
                    size = update.norm()
                state[index], update = square, even * size / even.norm()
            group["matrices"](p)[index].sub_(group["lr"] * factor * update)


def orthogonal(matrix: Tensor, steps: int) -> Tensor:
    """Newton-Schulz maps singular values and leaves the vectors alone."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / values.norm().clamp(min=1e-7)
    for _ in range(steps):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return (left * values) @ right


def hidden_matrices(
    module: nn.Module, parameters: Mapping[str, Tensor], how: Optimizer, blocks: Sequence[str]
) -> dict[str, Matrices]:
    """What muon updates, and the matrices in each: weights in the blocks, or all but the ends'."""
    linears = [part for part in module.modules() if isinstance(part, nn.Linear)]
    found: dict[str, Matrices] = {}
    for name, parameter in parameters.items() if how.name == "muon" else ():
        rule = next((g.by for g in how.groups if fnmatchcase(name, g.pattern)), "")
        owner = None if name.startswith("loss.") else module.get_submodule(name.rpartition(".")[0])
        inside = any(name.startswith(f"{block}.") for block in blocks)
        last = not blocks and owner in linears[-1:]
        experts = parameter.ndim > 2 and parameter.shape[0] > 1  # stacked, by names of their own
        named = "weight" in name or experts
        weight = named and not isinstance(owner, nn.Embedding | nn.EmbeddingBag)
        usual = weight and not last and (inside or not blocks)
        filters = isinstance(owner, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        if ((usual and rule != "adamw") or rule == "muon") and parameter.ndim > 1:
            found[name] = filter_matrix if filters else stacked_matrices
    return found


def filter_matrix(weight: Tensor) -> list[Tensor]:
    return [weight.flatten(1)]


def stacked_matrices(weight: Tensor) -> list[Tensor]:
    return list(weight.view(-1, *weight.shape[-2:]))
