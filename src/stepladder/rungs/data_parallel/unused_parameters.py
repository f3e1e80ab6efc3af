"""Which parameters a batch used, on any rank, where torch's engine fills gaps with zeros.

FSDP2 reduces a group's gradients in one collective, so that a parameter one rank skipped must
travel as zeros. One that all ranks skipped then has zeros for a gradient instead of none, and an
optimizer with momentum or decay would move what it leaves alone on one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class Usage:
    """Notes which parameters got a gradient, and takes it from those that no rank used."""

    def __init__(self, module: nn.Module, units: Sequence[nn.Module]) -> None:
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.parameters = [parameter for _, parameter in trained]  # as they lie between passes
        self.index = {name: index for index, (name, _) in enumerate(trained)}
        self.used: set[int] = set()
        self.heard = {id(parameter) for parameter in self.parameters}
        self.asked: Any = None  # the last question, alive until the next
        paths = {part: name for name, part in module.named_modules()}
        for unit in units:
            unit.register_forward_pre_hook(partial(self.listen, f"{paths[unit]}.".lstrip(".")))

    def listen(self, prefix: str, unit: nn.Module, _: Any) -> None:
        """Hear of the gradients of gathered parameters, which exist from the first pass on."""
        for name, parameter in unit.named_parameters():
            index = self.index.get(prefix + name)
            if index is not None and id(parameter) not in self.heard:
                self.heard.add(id(parameter))
                parameter.register_post_accumulate_grad_hook(partial(self.note, index))

    def note(self, index: int, _: torch.Tensor) -> None:
        self.used.add(index)

    def settle(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """After a batch: drop the gradients of what no rank used.

        Every rank says what it used; only a rank that left something out waits for the answer.
        """
        flags = torch.zeros(len(self.parameters), dtype=torch.uint8)
        flags[sorted(self.used)] = 1
        anywhere = flags.to(device)
        work = dist.all_reduce(anywhere, dist.ReduceOp.MAX, group=group, async_op=True)
        self.asked = work, anywhere
        if len(self.used) < len(self.parameters):
            work.wait()
            for index in (anywhere == 0).nonzero().flatten().tolist():
                self.parameters[index].grad = None
        self.used.clear()
