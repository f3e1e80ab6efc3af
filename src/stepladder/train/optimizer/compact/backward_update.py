"""The update inside backward: each parameter's as soon as its gradient is there.

The gradient is freed at once, so no step holds all of them: 2 bytes a parameter less. Under ZeRO 2
and 3 FSDP2 calls the hook once it has reduced a parameter's slice. What needs all of them before
the first update (clipping by the global norm, sums over micro-batches) is refused where plans are
checked, and so is what gains nothing by it: DDP's buckets stay. A parameter whose gradient is not
finite is left as it was; those behind it in the module may have been updated, so a run must stop
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepladder.errors import ModelError, PlanError
from stepladder.rungs import ParameterShard
from stepladder.rungs.data_parallel.broadcast_parameters import declares_anatomy
from stepladder.rungs.parameter_hooks import is_own
from stepladder.seam.gradient_hooks import accumulated_hooks, gradient_hooks
from stepladder.train.engine import Engine
from stepladder.train.optimizer.gradient_norm import Norms, add_over_ranks
from stepladder.train.optimizer.master_weights import MasterAdam
from stepladder.world import World

Started = TypeVar("Started", bound=Engine)


class BackwardUpdate:
    """Hooks on parameters that update them; idle but while `running`."""

    def __init__(
        self, optimizer: MasterAdam, shards: Iterable[ParameterShard], hold: Callable[[], None]
    ) -> None:
        self.optimizer, self.hold, self.is_running = optimizer, hold, False
        self.sees_hooks = False  # of users', which several ranks call after backward
        self.shards = {shard.parameter: shard for shard in shards}
        self.groups = {p: group for group in optimizer.param_groups for p in group["params"]}
        self.squares: dict[nn.Parameter, Tensor] = {}  # of this step's gradients
        self.counted: dict[int, Tensor] = {}  # by group
        self.one = torch.ones((), device=optimizer.counts.device)
        for parameter in self.shards:
            parameter.register_post_accumulate_grad_hook(self.update)

    @contextmanager
    def running(self) -> Iterator[None]:
        """A block whose backward pass is a step."""
        if self.sees_hooks:
            self.refuse_hooks()
        self.hold()
        groups = self.optimizer.param_groups
        self.counted = {id(group): self.optimizer.counted(group, ahead=1) for group in groups}
        self.squares.clear()
        self.is_running = True
        try:
            yield
        finally:
            self.is_running = False

    def refuse_hooks(self) -> None:
        """Hooks of the user's are called once a batch, when gradients are gone by now."""
        for parameter, shard in self.shards.items():
            every = (*gradient_hooks(parameter).values(), *accumulated_hooks(parameter).values())
            if not all(map(is_own, every)):
                problem = "has hooks for the whole gradient, which is freed in slices under"
                raise ModelError(
                    f"'{shard.name}'", f"{problem} update=backward", "Use update=step."
                )

    @torch.no_grad()
    def update(self, parameter: nn.Parameter) -> None:
        if not self.is_running or parameter.grad is None:
            return
        shard = self.shards[parameter]
        shard.take_gradient()
        gradient, owned = shard.gradient, shard.owned
        assert gradient is not None
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float32)
        group = self.groups[owned]
        bad = (norm - norm).ne(0).float()  # 0 unless infinite or NaN
        counted = self.counted[id(group)]
        self.optimizer.update_parameters(group, [owned], counted, self.one, bad)
        self.optimizer.counts[self.optimizer.places[owned]] += 1 - bad
        self.squares[parameter] = norm.square()
        shard.drop_gradient()

    def norms(self, _: Any, world: World) -> Norms:
        """Of the gradients of the last step, in the order of the module."""
        having = [parameter for parameter in self.shards if parameter in self.squares]
        each = torch.stack([self.squares[parameter] for parameter in having] or [self.one * 0])
        return add_over_ranks([self.shards[parameter] for parameter in having], each, (), world)


def update_in_backward(run: Started) -> Started:
    """The run, every step of which updates its parameters inside backward."""
    assert isinstance(run.optimizer, MasterAdam)
    if run.health.policy != "stop":
        problem = (
            f"update=backward cannot take back what it updated before nonfinite={run.health.policy}"
        )
        raise PlanError("update", problem, "Use nonfinite=stop, or leave update out.")
    updates = BackwardUpdate(run.optimizer, run.climbed.shards, run.hold)
    if run.world.layout.num_ranks > 1:
        refuse_late_gradients(run)
        updates.sees_hooks = True
    run.measure, run.around_pass = updates.norms, updates.running
    return run


def refuse_late_gradients(run: Engine) -> None:
    """Refuse parameters whose gradients ranks agree on only when backward is done."""
    name = type(run.module).__name__.removeprefix("FSDP")  # fully_shard's own subclass
    why = "may have parameters that no rank uses in a batch"
    if declares_anatomy(run.module):
        whole = [s.name for s in run.climbed.shards if not isinstance(s.parameter, DTensor)]
        if not whole:
            return
        name, why = f"'{whole[0]}'", "is whole on every rank"
    problem = f"{why}, which is known, or summed, only after backward: update=backward is too early"
    raise ModelError(name, problem, "Use update=step.")
