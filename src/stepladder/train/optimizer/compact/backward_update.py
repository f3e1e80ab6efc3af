"""The update inside backward: each parameter's as soon as its gradient is there.

The gradient is freed at once, so no step holds all of them: 2 bytes a parameter less. What needs
all of them before the first update (clipping by the global norm, sums over micro-batches or ranks)
is refused where plans are checked. A parameter whose gradient is not finite is left as it was;
those behind it in the module may have been updated, so a run must stop there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stepladder.errors import PlanError
from stepladder.rungs import ParameterShard
from stepladder.train.engine import Engine
from stepladder.train.optimizer.gradient_norm import Norms
from stepladder.train.optimizer.master_weights import MasterAdam

Started = TypeVar("Started", bound=Engine)


class BackwardUpdate:
    """Hooks on parameters that update them; idle but while `running`."""

    def __init__(
        self, optimizer: MasterAdam, shards: Iterable[ParameterShard], hold: Callable[[], None]
    ) -> None:
        self.optimizer, self.hold, self.is_running = optimizer, hold, False
        self.names = {shard.parameter: shard.name for shard in shards}
        self.groups = {p: group for group in optimizer.param_groups for p in group["params"]}
        self.squares: dict[nn.Parameter, Tensor] = {}  # of this step's gradients
        self.counted: dict[int, Tensor] = {}  # by group
        self.one = torch.ones((), device=optimizer.counts.device)
        for parameter in self.names:
            parameter.register_post_accumulate_grad_hook(self.update)

    @contextmanager
    def running(self) -> Iterator[None]:
        """A block whose backward pass is a step."""
        self.hold()
        groups = self.optimizer.param_groups
        self.counted = {id(group): self.optimizer.counted(group, ahead=1) for group in groups}
        self.squares.clear()
        self.is_running = True
        try:
            yield
        finally:
            self.is_running = False

    @torch.no_grad()
    def update(self, parameter: nn.Parameter) -> None:
        gradient = parameter.grad
        if not self.is_running or gradient is None:
            return
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float32)
        group = self.groups[parameter]
        bad = (norm - norm).ne(0).float()  # 0 unless infinite or NaN
        counted = self.counted[id(group)]
        self.optimizer.update_parameters(group, [parameter], counted, self.one, bad)
        self.optimizer.counts[self.optimizer.places[parameter]] += 1 - bad
        self.squares[parameter] = norm
        parameter.grad = None

    def norms(self, *_: Any) -> Norms:
        """Of the gradients of the last step, in the order of the module."""
        having = [parameter for parameter in self.names if parameter in self.squares]
        each = torch.stack([self.squares[parameter] for parameter in having] or [self.one * 0])
        whole = each.square().sum().sqrt()
        return Norms([self.names[parameter] for parameter in having], each, whole)


def update_in_backward(run: Started) -> Started:
    """The run, every step of which updates its parameters inside backward."""
    assert isinstance(run.optimizer, MasterAdam)
    if run.health.policy != "stop":
        problem = (
            f"update=backward cannot take back what it updated before nonfinite={run.health.policy}"
        )
        raise PlanError("update", problem, "Use nonfinite=stop, or leave update out.")
    updates = BackwardUpdate(run.optimizer, run.climbed.shards, run.hold)
    run.measure, run.around_pass = updates.norms, updates.running
    return run
