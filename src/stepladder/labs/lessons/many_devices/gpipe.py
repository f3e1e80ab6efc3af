"""Pipeline parallelism as GPipe does it, and its bubble.

The first half of the layers stands on rank 0, the second on rank 1. Rank 1 cannot begin before rank
0 is done, so with the whole batch at once each waits for the other half of the time. Cut the batch
into m micro-batches, and rank 0 works on the second while rank 1 works on the first:

    rank 0   F0 F1 F2 F3 ·· B3 B3 B2 B2 B1 B1 B0 B0       F: forward, 1 tick
    rank 1   ·· F0 F1 F2 F3 B3 B3 B2 B2 B1 B1 B0 B0 ··    B: backward, 2 ticks

All forward, then all backward, the last micro-batch first. What is left of the waiting is the
bubble: the dots of the picture.

Time is counted in ticks here: each message says at which tick it was sent, and who waits for it
moves the own clock there. So the numbers do not depend on the machine.

Claim: on two ranks the gradients are those of the whole model on the whole batch, as with torch's
ScheduleGPipe, and the share of time spent waiting is your formula's to the digit: 50 % for one
micro-batch, 11 % for eight.

Predict: Two stages and sixteen micro-batches: which share of its time does a stage wait?
[waiting; micro_batches = 16]

Often wrong:
- the loss is not divided by the number of micro-batches
- what arrives from the stage before asks for no gradient
- backward begins with the first micro-batch on one stage, with the last on the other
- the bubble is taken to be (p - 1)/m
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stepladder.labs.equipment.lab_ranks import on_ranks

WIDTH, BATCH = 8, 16


class Clock:
    """A stage's own time in ticks."""

    def __init__(self) -> None:
        self.now = self.busy = 0

    def work(self, ticks: int) -> None:
        self.now += ticks
        self.busy += ticks

    def send(self, tensor: Tensor | None, to: int) -> None:
        assert tensor is not None, "there is nothing to send: this tensor has no gradient"
        dist.send(torch.cat((tensor.detach().flatten(), torch.tensor([float(self.now)]))), to)

    def receive(self, like: tuple[int, int], source: int) -> Tensor:
        message = torch.empty(like[0] * like[1] + 1)
        dist.recv(message, source)
        self.now = max(self.now, int(message[-1]))
        return message[:-1].view(like)


def bubble(num_stages: int, micro_batches: int) -> float:
    """The share of its time that a stage waits."""
    # >>> The share of its time that a stage waits.
    # ??? In the picture, count in units of one F and one B: how many does rank 0 work, and after
    # ???   how many is all over?
    # ??? With p stages, how many units later than the first does the last stage begin?
    # ??? One micro-batch on two stages: each waits half of the time.
    return (num_stages - 1) / (micro_batches + num_stages - 1)
    # <<< raise NotImplementedError


def run(stage: nn.Module, x: Tensor, y: Tensor, micro_batches: int) -> Clock:
    """All micro-batches forward, then all backward; the stage's parameters have gradients after."""
    clock, (rank, last) = Clock(), (dist.get_rank(), dist.get_world_size() - 1)
    xs, ys = x.chunk(micro_batches), y.chunk(micro_batches)
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    for micro in range(micro_batches):
        # >>> This stage's input of the micro-batch; backward will want its gradient.
        # ??? Rank 0 has the batch. Where do the other stages get theirs?
        # ??? clock.receive takes a shape and who sends.
        # ??? What came over the wire belongs to no graph. What must it be told, so that backward
        # ???   leaves a gradient in it?
        got = xs[micro] if rank == 0 else clock.receive((len(xs[micro]), WIDTH), rank - 1)
        inputs.append(got.requires_grad_())
        # <<< inputs.append(xs[micro])
        outputs.append(stage(inputs[micro]))
        clock.work(1)
        # >>> On the last rank make the output this micro-batch's share of the loss; elsewhere pass
        # >>> it on.
        # ??? The batch's mean is made of the micro-batches' means: how?
        # ??? Who waits for this output? Nobody waits for the last rank's.
        if rank == last:
            outputs[micro] = (outputs[micro] - ys[micro]).square().mean() / micro_batches
        else:
            clock.send(outputs[micro], rank + 1)
        # <<< outputs[micro] = (outputs[micro] - ys[micro]).square().mean()
    for micro in reversed(range(micro_batches)):
        # >>> Backward of this micro-batch (2 ticks of work), and the input's gradient to whom it
        # >>> came from.
        # ??? A loss goes backward by itself. An output needs its gradient: who has it, and in which
        # ???   shape?
        # ??? After backward the input has a gradient. Rank 0's came from nobody.
        # ??? The loop is the same on all ranks, so messages arrive in the order in which they are
        # ???   asked for.
        like = (len(xs[micro]), WIDTH)
        gradient = None if rank == last else clock.receive(like, rank + 1)
        outputs[micro].backward(gradient)
        clock.work(2)
        if rank > 0:
            clock.send(inputs[micro].grad, rank - 1)
        # <<< clock.work(2)
    return clock


def make_stage(rank: int) -> nn.Module:
    torch.manual_seed(rank)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())


def make_batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(7))
    return x, x.roll(1, dims=1).tanh()


def share_waiting(micro_batches: int) -> float:
    """Measured on one rank; the run is over when all ranks are done."""
    clock = run(make_stage(dist.get_rank()), *make_batch(), micro_batches)
    over = torch.tensor(clock.now)
    dist.all_reduce(over, dist.ReduceOp.MAX)
    return 1 - clock.busy / over.item()


def measure() -> list[dict[str, Any]]:
    return [
        {"micro_batches": m, "waiting": on_ranks(share_waiting, 2, m)[0], "formula": bubble(2, m)}
        for m in (1, 2, 4, 8, 16)
    ]


if __name__ == "__main__":
    for row in measure():
        print(row)
