"""Many nodes: how fast is the network, and what survives when a node goes down?

Two hosts with a cable of 100 Mbit/s between them: network namespaces, for which Linux wants root;
elsewhere both ranks stand on this machine, and the table says why.

The bandwidth. An all-reduce of D bytes sends other than D bytes over each link: how many depends on
the number of ranks (the lab called ring shows it). What a link carried, in a second, is the "bus
bandwidth": it can be held against the cable, however many ranks there are.

The checkpoint. Every node writes its own part, and a node can go down in the middle of that:

    half a file      a file that is only begun must not look like a checkpoint
    half a step      node 0 has step 6, node 1 only step 4. Resume from the newest step that ALL
                     have, and find that out together
    half a state     everything the next step depends on: weights, momentum, the stream of data

Claim: the bus bandwidth of a 2 MiB message is never more than 1.3 times the cable's (the kernel
lets a first burst pass); a run whose second node goes down while it writes step 6 resumes at 4 and
has, to the bit, the losses of a run in which nothing happened. What
torch.distributed.checkpoint.save writes and loads is, to the bit, the same state.

Predict: How many MB/s does an all-reduce of 4 MiB reach between two hosts on a cable of 100 Mbit/s?
[mb_per_s; kib = 4096]

Often wrong:
- the bandwidth is taken to be bytes by seconds
- the checkpoint is written under its final name
- each node resumes from its own newest step
- momentum is not saved
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.equipment.two_hosts import two_hosts

RATE, RATE_BYTES, STEPS, SAVE_EVERY = "100mbit", 12.5e6, 8, 2


def bus_bandwidth(num_bytes: float, seconds: float, num_ranks: int) -> float:
    """Bytes a second that each link carried in an all-reduce of so many bytes."""
    # >>> Bytes that each link carried, in a second.
    # ??? In a ring all-reduce one part of num_ranks leaves a rank at every hop. How many hops are
    # ???   there until all have the sum?
    # ??? Two ranks send as many bytes as the message has, eight ranks 1.75 times as many.
    return 2 * (num_ranks - 1) / num_ranks * num_bytes / seconds
    # <<< raise NotImplementedError


def time_all_reduce(num_bytes: int) -> float:
    tensor = torch.zeros(num_bytes // 4)
    dist.barrier()
    begun = time.perf_counter()
    dist.all_reduce(tensor)
    dist.barrier()  # the first to be done waits for the last
    return time.perf_counter() - begun


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """This rank's part of a step's checkpoint, all of it or nothing."""
    target = folder / f"step-{step}-rank-{dist.get_rank()}.pt"
    # >>> This rank's state is under its final name whole, or not at all.
    # ??? The power goes in the middle of torch.save: what is on the disk, and under which name?
    # ??? os.replace gives a file another name in one go. What should it be called until then?
    beside = target.with_suffix(".part")
    torch.save(state, beside)
    os.replace(beside, target)
    # <<< torch.save(state, target)


def newest(folder: Path) -> int:
    """The newest step that every rank has; 0 where there is none."""
    found = folder.glob(f"step-*-rank-{dist.get_rank()}.pt")
    mine = {int(path.name.split("-")[1]) for path in found}
    # >>> The newest step that every rank has: the same answer on all ranks.
    # ??? `mine` are this rank's steps. How does it learn of the others'?
    # ??? dist.all_gather_object fills a list with every rank's object.
    # ??? Sets know what they have in common, and max takes a default.
    everyones: list[set[int]] = [set() for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyones, mine)
    return max(set.intersection(*everyones), default=0)
    # <<< return max(mine, default=0)


def train(folder: Path) -> list[float]:
    """Every rank reads a stream of rows of its own; the losses from the resumed step on."""
    torch.manual_seed(0)
    model, stream = nn.Linear(8, 1), torch.Generator().manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if first := newest(folder):
        path = folder / f"step-{first}-rank-{dist.get_rank()}.pt"
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        stream.set_state(state["stream"])
    losses = []
    for step in range(first, STEPS):
        x = torch.randn(4, 8, generator=stream)
        optimizer.zero_grad()
        loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, dist.ReduceOp.SUM)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % SAVE_EVERY == 0:
            # >>> All that the next step depends on.
            # ??? What does a resumed run read above?
            # ??? Three things have changed during a step, and the next step will read them. Two
            # ???   have a state_dict.
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state["stream"] = stream.get_state()
            # <<< state = {"model": model.state_dict()}
            save(folder, step + 1, state)
    return losses


def measure() -> list[dict[str, Any]]:
    rows = []
    with two_hosts(RATE) as hosts:
        where = hosts.reason or f"two hosts, {RATE}"
        for size in (2**16, 2**18, 2**20, 2**22):
            seconds = on_ranks(hosts.at(time_all_reduce), 2, size, join=False)[0]
            speed = bus_bandwidth(size, seconds, 2) / 1e6
            rows.append({"kib": size // 1024, "ms": 1e3 * seconds, "mb_per_s": speed, "on": where})
    with tempfile.TemporaryDirectory() as name:
        final = on_ranks(train, 2, Path(name))[0][-1]
    return [*rows, {"on": f"loss after {STEPS} steps", "loss": final}]


if __name__ == "__main__":
    for row in measure():
        print(row)
