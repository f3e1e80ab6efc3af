"""Parameters that not every rank used: experts, conditional branches.

FSDP2 reduces the gradients of a unit in one collective, so a parameter that one rank did not use is
sent as zeros. One that no rank used then has zeros for a gradient instead of None, and an optimizer
with momentum or weight decay would move it, which on one device it does not.

Before torch 2.13 FSDP2 sends only the gradients that a rank has: messages of ranks would differ in
length, which ends them, or mix up gradients of one length. There a rank fills the gaps itself
before FSDP2 looks: as the backward pass leaves a unit through its inputs, and at its end, for units
whose inputs need no gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.distributed.tensor import DTensor

from stepladder.rungs.parameter_shards import parameters_apart
from stepladder.seam.gradient_hooks import at_end_of_backward
from stepladder.seam.pytree import tree_leaves

from .fsdp_units import Unit


class UsedParameters:
    """Records which parameters got a gradient; drops gradients of those no rank used."""

    def __init__(
        self, module: nn.Module, units: Sequence[nn.Module], replicated: Collection[nn.Parameter]
    ) -> None:
        trained = [
            (name, parameter)
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and parameter not in replicated
        ]
        self.parameters = [
            parameter for _, parameter in trained
        ]  # sharded, as between forward passes
        self.index = {name: index for index, (name, _) in enumerate(trained)}
        self.used: set[int] = set()
        self.zeros: set[int] = set()  # of blocks that this rank runs only because others do
        apart = parameters_apart(module)
        self.apart = [p in apart for p in self.parameters]  # other ranks have others in its place
        self.hooked = {id(parameter) for parameter in self.parameters}
        self.pending: Any = None  # the last collective, kept alive until the next
        # Hooks of gathered parameters hold this object, and Python's search for garbage does not
        # see them: with a reference to the module, the module and its groups would stay for ever.
        self.paths = paths = WeakKeyDictionary(
            {part: name for name, part in module.named_modules()}
        )
        for unit in units:
            unit.register_forward_pre_hook(
                partial(self.register_hooks, f"{paths[unit]}.".lstrip("."))
            )

    def register_hooks(self, prefix: str, unit: nn.Module, _: Any) -> None:
        """Hook the gathered parameters, which exist from the first forward pass on."""
        for name, parameter in unit.named_parameters():
            index = self.index.get(prefix + name)
            if index is not None and id(parameter) not in self.hooked:
                self.hooked.add(id(parameter))
                parameter.register_post_accumulate_grad_hook(partial(self.mark_used, index))

    def mark_used(self, index: int, _: torch.Tensor) -> None:
        if index not in self.zeros:
            self.used.add(index)

    def note_use(self, expert: nn.Module, called: bool) -> None:
        """Whether a rank has rows for an expert, which runs here in any case."""
        prefix = f"{self.paths[expert]}."
        inside = {index for name, index in self.index.items() if name.startswith(prefix)}
        self.zeros |= inside
        if called:
            self.used |= inside

    def skip(self, block: nn.Module, skipped: bool) -> None:
        """Whether a block of this micro-batch runs only because other ranks run it."""
        if not skipped and not self.zeros:
            return
        prefix = f"{self.paths[block]}."
        inside = {index for name, index in self.index.items() if name.startswith(prefix)}
        self.zeros = self.zeros | inside if skipped else self.zeros - inside

    def drop_unused(
        self, group: dist.ProcessGroup, few: dist.ProcessGroup, device: torch.device
    ) -> None:
        """After a batch: drop the gradients of parameters that no rank used.

        Every rank takes part in the collective; only one that skipped a parameter waits for it.

        Args:
            few: the ranks of the group that have the same parameters apart.
        """
        flags = torch.zeros(len(self.parameters), dtype=torch.uint8)
        flags[sorted(self.used)] = 1
        anywhere = flags.to(device)
        if any(self.apart):
            apart = torch.tensor(self.apart, device=device)
            mine = anywhere * apart
            dist.all_reduce(mine, dist.ReduceOp.MAX, group=few)
        work = dist.all_reduce(anywhere, dist.ReduceOp.MAX, group=group, async_op=True)
        self.pending = work, anywhere
        if len(self.used) < len(self.parameters):
            work.wait()
            if any(self.apart):
                anywhere = torch.where(apart, mine, anywhere)
            for index in (anywhere == 0).nonzero().flatten().tolist():
                self.parameters[index].grad = None
        self.used.clear()
        self.zeros.clear()


@dataclass(slots=True)
class GatheredUnit:
    """The parameters of a unit that FSDP2 reduces together."""

    owners: list[tuple[nn.Module, str]]  # which module has it, and under which name
    running: bool = False  # whether a forward pass entered it whose backward has not left it

    def fill(self) -> None:
        for owner, name in self.owners:
            gathered = owner.get_parameter(name)
            # Already cut again: FSDP2 has reduced this unit.
            if isinstance(gathered, DTensor) or gathered.grad is not None:
                continue
            gathered.grad = torch.zeros_like(gathered)
        self.running = False


@dataclass(slots=True)
class ZeroGradients:
    """Watches the units of a sharded module, and fills gaps in their gradients with zeros."""

    units: list[GatheredUnit] = field(default_factory=list)

    @classmethod
    def watch(cls, units: Sequence[Unit], replicated: Collection[nn.Parameter]) -> ZeroGradients:
        """Watch units that are already sharded: hooks on inputs run after FSDP2's own."""
        watch, taken = cls(), {id(parameter) for parameter in replicated}
        for unit in units:  # inner ones first, so that each parameter is its innermost unit's
            gathered = GatheredUnit(list(trained_in(unit, taken)))
            watch.units.append(gathered)
            for part in unit.parts:
                enter = torch.compiler.disable(Entered(gathered))
                part.register_forward_pre_hook(enter, with_kwargs=True)
        return watch

    def before_backward(self, loss: Tensor, last: bool) -> None:
        """Have units be filled that the backward pass does not leave through their inputs."""
        if loss.requires_grad:
            # A callback that is queued as the backward pass begins runs before FSDP2's.
            loss.register_hook(lambda gradient: at_end_of_backward(self.fill))

    def fill(self) -> None:
        for unit in self.units:
            if unit.running:
                unit.fill()


def trained_in(unit: Unit, taken: set[int]) -> Iterator[tuple[nn.Module, str]]:
    for part in unit.parts:
        for owner in part.modules():
            for name, parameter in owner.named_parameters(recurse=False):
                if id(parameter) not in taken:
                    taken.add(id(parameter))
                    if parameter.requires_grad:
                        yield owner, name


@dataclass(frozen=True, slots=True)
class Entered:
    """Before a unit's forward: watch its inputs, so that its backward is seen to leave it.

    By hooks, and not by an autograd function: a block may not write to the views that one returns.
    """

    unit: GatheredUnit

    def __call__(self, part: nn.Module, args: Any, kwargs: Any) -> None:
        if not torch.is_grad_enabled():
            return
        self.unit.running = True
        flowing = [leaf for leaf in tree_leaves((args, kwargs)) if flows(leaf)]
        if flowing:
            register_multi_grad_hook(flowing, lambda gradients: self.unit.fill())


def flows(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad
