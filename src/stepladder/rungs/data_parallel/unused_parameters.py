"""Which parameters a batch used on any rank, where FSDP2 fills gaps with zeros.

FSDP2 reduces the gradients of a unit in one collective, so a parameter that one rank did not use is
sent as zeros. One that no rank used then has zeros for a gradient instead of None, and an optimizer
with momentum or weight decay would move it, which on one device it does not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


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
        self.hooked = {id(parameter) for parameter in self.parameters}
        self.pending: Any = None  # the last collective, kept alive until the next
        self.paths = paths = {part: name for name, part in module.named_modules()}
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

    def skip(self, block: nn.Module, skipped: bool) -> None:
        """Whether a block of this micro-batch runs only because other ranks run it."""
        if not skipped and not self.zeros:
            return
        prefix = f"{self.paths[block]}."
        inside = {index for name, index in self.index.items() if name.startswith(prefix)}
        self.zeros = self.zeros | inside if skipped else self.zeros - inside

    def drop_unused(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """After a batch: drop the gradients of parameters that no rank used.

        Every rank takes part in the collective; only one that skipped a parameter waits for it.
        """
        flags = torch.zeros(len(self.parameters), dtype=torch.uint8)
        flags[sorted(self.used)] = 1
        anywhere = flags.to(device)
        work = dist.all_reduce(anywhere, dist.ReduceOp.MAX, group=group, async_op=True)
        self.pending = work, anywhere
        if len(self.used) < len(self.parameters):
            work.wait()
            for index in (anywhere == 0).nonzero().flatten().tolist():
                self.parameters[index].grad = None
        self.used.clear()
        self.zeros.clear()
