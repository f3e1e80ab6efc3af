"""A rank whose time is counted, not measured: so that a lesson's efficiency is the same anywhere.

Three things go on at once: it computes, its link sends, a helper loads data. Each is a lane with a
time of its own. What is sent is really sent, over gloo; how long that takes on the lesson's network
is arithmetic: so many ticks for a message, so many for its bytes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

LAYERS, WIDTH = 16, 32
FORWARD, BACKWARD, LOAD = 1.0, 2.0, 50.0  # ticks: of a layer, of a layer, of a batch
LATENCY, PER_LAYER = 2.0, 0.5  # ticks: of a message, of a layer's gradient in it


@dataclass(frozen=True, slots=True)
class Pending:
    """What goes on in another lane, and when it will be done."""

    done_at: float
    work: Any = None


@dataclass(slots=True)
class Machine:
    now: float = 0.0  # of the lane that computes
    link_free: float = 0.0
    loader_free: float = 0.0
    ticks: defaultdict[str, float] = field(default_factory=partial(defaultdict, float))  # by name
    messages: int = 0

    def compute(self, name: str, ticks: float) -> None:
        self.now += ticks
        self.ticks[name] += ticks

    def send(self, tensor: Tensor) -> Pending:
        """Begin to add a tensor up over all ranks."""
        layers = tensor.numel() / WIDTH**2
        begun = max(self.now, self.link_free)
        self.link_free = begun + LATENCY + PER_LAYER * layers
        self.messages += 1
        return Pending(self.link_free, dist.all_reduce(tensor, async_op=True))

    def begin_loading(self) -> Pending:
        """Have the helper load a batch."""
        self.loader_free = max(self.now, self.loader_free) + LOAD
        return Pending(self.loader_free)

    def wait(self, name: str, pending: Pending) -> None:
        """Do nothing until it is done."""
        if pending.work is not None:
            pending.work.wait()
        self.ticks[name] += max(0.0, pending.done_at - self.now)
        self.now = max(self.now, pending.done_at)

    def forget(self) -> None:
        """Count from here: what came before was the start."""
        self.ticks.clear()
        self.messages = 0

    @property
    def efficiency(self) -> float:
        """The share of the time spent on the model."""
        work = self.ticks["forward"] + self.ticks["backward"]
        return work / sum(self.ticks.values())


def make_model(machine: Machine) -> nn.Sequential:
    """Layers that tell the machine when they compute."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    for layer in model:
        weight: Any = layer.weight
        weight.grad = torch.zeros_like(weight)
        layer.register_forward_pre_hook(lambda *_: machine.compute("forward", FORWARD))
        weight.register_post_accumulate_grad_hook(lambda _: machine.compute("backward", BACKWARD))
    return model


def make_rows(step: int) -> Tensor:
    """A rank's rows of a step."""
    seed = 100 * step + dist.get_rank()
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed))
