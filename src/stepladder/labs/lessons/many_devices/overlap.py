"""Profiling: find the bottleneck, hide the talking, reach 90 % efficiency.

A step of two ranks as somebody wrote it: load a batch, forward, backward, then average gradients,
layer by layer, and wait for each. A profile says where the time goes, in ticks (time is counted
here, so the numbers are the same on every machine):

    load 50, forward 16, backward 32, gradients 40: 48 of 138 ticks are work, 35 %

First the largest, then the next:

    load        a helper can load the next batch while this one computes: begin it before
    gradients   the last layer's are ready when backward has only begun. Send them at once and wait
                when backward is over: the link works while the processor does
    buckets     every message costs 2 ticks before its first byte. One a layer is too many, one for
                all cannot begin before the end: a few layers each

Claim: loading ahead and buckets of two layers, sent while backward runs, bring the efficiency from
35 % to over 90 %; one layer or all sixteen in a bucket stay below 85 %. The gradients are those of
DistributedDataParallel, which does the same with its buckets and reaches the same efficiency.

Predict: Loading is hidden, and all sixteen layers' gradients travel in one message after backward:
which share of the time is the model's work? [efficiency; layers_each = 16]

Often wrong:
- the longest work is taken for the bottleneck
- the next batch is loaded when it is needed
- a bucket leaves before all its gradients are there
- each message is waited for where it is sent
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stepladder.labs.equipment.counted_machine import (
    LAYERS,
    Machine,
    Pending,
    make_model,
    make_rows,
)
from stepladder.labs.equipment.lab_ranks import on_ranks


def bottleneck(ticks: dict[str, float]) -> str:
    """What to mend first: where most time goes that is not the model's work."""
    # >>> The name of what to mend first.
    # ??? What is the job for? That part of the time is not lost.
    # ??? Of what remains, where does most of the time go? max takes a key.
    waste = {name: spent for name, spent in ticks.items() if name not in ("forward", "backward")}
    return max(waste, key=lambda name: waste[name])
    # <<< return ...


class Buckets:
    """Averages gradients over the ranks, some layers in a message, while backward runs."""

    def __init__(self, model: nn.Module, machine: Machine, layers_each: int) -> None:
        self.machine = machine
        self.sent: list[tuple[list[nn.Parameter], Tensor, Pending]] = []
        weights = list(model.parameters())[::-1]  # as backward comes to them
        for first in range(0, len(weights), layers_each):
            bucket = weights[first : first + layers_each]
            # >>> Have self.send called for this bucket as soon as its gradients are all there.
            # ??? Backward comes to the weights in the order of this list. Whose gradient is the
            # ???   last of a bucket?
            # ??? register_post_accumulate_grad_hook calls a function with the weight;
            # ???   functools.partial fixes a first argument.
            bucket[-1].register_post_accumulate_grad_hook(partial(self.send, bucket))
            # <<< pass

    def send(self, bucket: list[nn.Parameter], _: Tensor) -> None:
        """Begin to send a bucket's gradients, as one tensor."""
        flat = torch.cat([weight.grad.flatten() for weight in bucket if weight.grad is not None])
        # >>> Begin to send the bucket, and remember what `finish` will need.
        # ??? self.machine.send begins, and gives something to wait for. Who waits, and when?
        # ??? `finish` takes three things from each entry of self.sent.
        self.sent.append((bucket, flat, self.machine.send(flat)))
        # <<< raise NotImplementedError

    def finish(self) -> None:
        """After backward: wait for each bucket and put the means where gradients belong."""
        for bucket, flat, pending in self.sent:
            self.machine.wait("gradients", pending)
            parts = (flat / dist.get_world_size()).chunk(len(bucket))
            for weight, part in zip(bucket, parts, strict=True):
                weight.grad = part.view_as(weight)
        self.sent.clear()


def train(layers_each: int = 2, num_steps: int = 4) -> tuple[Machine, list[Tensor]]:
    """The machine afterwards, with its ticks since the first batch was there; the weights."""
    machine = Machine()
    model = make_model(machine)
    buckets = Buckets(model, machine, layers_each)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    machine.wait("load", machine.begin_loading())
    machine.forget()
    for step in range(num_steps):
        # >>> Let the helper begin with the next batch.
        # ??? One call of the machine begins to load, another one waits. Which belongs here?
        # ??? What it gives is needed at the end of the step.
        loading = machine.begin_loading()
        # <<< pass
        optimizer.zero_grad(set_to_none=False)
        (model(rows := make_rows(step)) - rows).square().mean().backward()
        buckets.finish()
        optimizer.step()
        # >>> Wait for the batch that is being loaded.
        # ??? machine.wait takes a name for the profile, and what was begun.
        # ??? What is begun here was not begun early enough.
        machine.wait("load", loading)
        # <<< machine.wait("load", machine.begin_loading())
    return machine, [weight.detach() for weight in model.parameters()]


def measure() -> list[dict[str, Any]]:
    rows = []
    for layers_each in (1, 2, 4, 8, LAYERS):
        machine, _ = on_ranks(train, 2, layers_each)[0]
        spent = {name: machine.ticks[name] / 4 for name in ("load", "gradients")}
        rows.append({"layers_each": layers_each, "efficiency": machine.efficiency, **spent})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
