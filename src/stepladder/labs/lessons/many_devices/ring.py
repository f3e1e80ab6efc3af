"""Ring all-reduce from scratch, with its picture.

n ranks hold a tensor each and all want the sum. If everybody sent everything to everybody, each
would send a tensor to every other. On a ring each sends less than two, however many there are. The
tensor is cut into n chunks, and everybody talks to the next rank only:

    first half    n - 1 times: send a chunk on, ADD what arrives to one's own. A chunk that travels
                  round collects every rank's part: in the end each rank holds one finished chunk
    second half   n - 1 times: send a finished chunk on, KEEP what arrives in place of one's own

Rank r begins by sending chunk r, and each time sends on what it has just received.

Claim: in the end every rank has the sum that torch.distributed.all_reduce gives, and has sent less
than two tensors. The picture shows how many ranks are added up in each chunk.

Predict: How many tensors does each of four ranks send in all? [tensors_sent]

Often wrong:
- what arrives replaces the chunk in the first half
- what arrives is added in the second half too
- the chunks go round the wrong way
- the whole tensor is sent at every step
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.measure import Traffic


def exchange(leaving: Tensor) -> Tensor:
    """Send to the next rank what leaves, and return what arrives from the rank before."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(leaving)
    messages = [
        dist.P2POp(dist.isend, leaving, (rank + 1) % num_ranks),
        dist.P2POp(dist.irecv, arriving, (rank - 1) % num_ranks),
    ]
    for request in dist.batch_isend_irecv(messages):
        request.wait()
    return arriving


def ring_all_reduce(tensor: Tensor, note: Callable[[], None] = lambda: None) -> None:
    """Add up the tensor over all ranks, in place; `note` is called after each step."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    chunks = tensor.chunk(num_ranks)  # views: what is written to them is written to the tensor
    for step in range(num_ranks - 1):
        # >>> First half: exchange one chunk, and add what arrives to one's own.
        # ??? At step 0 rank r sends chunk r. Which chunk does it receive, and who sent it?
        # ??? It sends on what it has just received: which chunk leaves rank r at step 1, and at
        # ???   step 2?
        # ??? Chunks are counted round, as ranks are: % num_ranks.
        leaving, arriving = (rank - step) % num_ranks, (rank - step - 1) % num_ranks
        chunks[arriving].add_(exchange(chunks[leaving]))
        # <<< exchange(chunks[rank])
        note()
    for step in range(num_ranks - 1):
        # >>> Second half: exchange one chunk, and keep what arrives in place of one's own.
        # ??? After the first half, which chunk has every rank's part in it on rank r? 'stepladder
        # ???   lab run ring' draws it.
        # ??? That chunk leaves first. From then on a rank sends on what it has just received.
        # ??? What arrives is finished: add_ would count it twice, copy_ does not.
        leaving, arriving = (rank + 1 - step) % num_ranks, (rank - step) % num_ranks
        chunks[arriving].copy_(exchange(chunks[leaving]))
        # <<< exchange(chunks[rank])
        note()


def watched(numbers: int = 4) -> tuple[list[list[int]], float]:
    """After each step, how many ranks are added up in each chunk here; tensors sent in all."""
    num_ranks = dist.get_world_size()
    ones = torch.ones(num_ranks * numbers)
    states: list[list[int]] = []

    def note() -> None:
        states.append([int(chunk[0]) for chunk in ones.chunk(num_ranks)])

    note()
    with Traffic() as traffic:
        ring_all_reduce(ones, note)
    return states, traffic.bytes["send"] / ones.nbytes


def measure(num_ranks: int = 4) -> list[dict[str, Any]]:
    found = on_ranks(watched, num_ranks)
    return [
        {"step": step, "rank": rank, "chunk": chunk, "ranks_added": added, "tensors_sent": sent}
        for step in range(2 * num_ranks - 1)
        for rank, (states, sent) in enumerate(found)
        for chunk, added in enumerate(states[step])
    ]


if __name__ == "__main__":
    for row in measure():
        print(row)
