"""Checks of data parallel by hand: each of its parts, then all of it against torch's."""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times

MISTAKES = (
    Mistake(
        "every rank shuffles with a seed of its own",
        "manual_seed(epoch)",
        "manual_seed(epoch + rank)",
        "by nobody: all ranks must shuffle alike",
    ),
    Mistake(
        "every rank reads all rows",
        "order[rank::num_ranks]",
        "order",
        "each rank reads all 12 rows",
    ),
    Mistake(
        "the ranks begin with different weights",
        "dist.broadcast(tensor.data, src=0)",
        "pass",
        "rank 1 does not begin with rank 0's weights",
    ),
    Mistake(
        "gradients are summed but not divided",
        "        parameter.grad /= dist.get_world_size()\n",
        "",
        "your gradients are 2 × too large: divide by the number of ranks",
    ),
)


def check_the_ranks_meet(lesson: ModuleType) -> None:
    """The processes meet: each knows its rank and how many there are."""

    def meet(rank: int, num_ranks: int, meeting: str) -> tuple[int, int]:
        lesson.join(rank, num_ranks, meeting)
        expect(dist.is_initialized(), "join was called and there is no process group.")
        return dist.get_rank(), dist.get_world_size()

    found = on_ranks(meet, 2, join=False)
    expect(found == [(0, 2), (1, 2)], f"(rank, ranks) are {found}, not [(0, 2), (1, 2)].")


def check_the_rows_are_shared(lesson: ModuleType) -> None:
    """Every row is read by one rank, in another order each epoch, as DistributedSampler does."""

    def shares() -> list[tuple[list[int], list[int]]]:
        theirs: Any = DistributedSampler(range(12), shuffle=True, seed=0)  # type: ignore[arg-type]
        found = []
        for epoch in range(2):
            theirs.set_epoch(epoch)
            found.append((lesson.share(12, epoch), list(theirs)))
        return found

    found = on_ranks(shares, 2)
    mine = [rank[0][0] for rank in found]
    expect(len(mine[0]) != 12, "each rank reads all 12 rows: take every 2nd of them.")
    readers = Counter(mine[0] + mine[1])
    twice = sum(number > 1 for number in readers.values())
    nobody = 12 - len(readers)
    expect(
        not twice and not nobody,
        f"{twice} rows are read twice and {nobody} by nobody: all ranks must shuffle alike.",
    )
    expect(found[0][0][0] != found[0][1][0], "epoch 1 is read in the order of epoch 0.")
    for rank in range(2):
        for epoch, (rows, wanted) in enumerate(found[rank]):
            expect(rows == wanted, f"rank {rank}, epoch {epoch}: {rows}, torch has {wanted}.")


def check_all_begin_alike(lesson: ModuleType) -> None:
    """Whatever the ranks drew, all begin with rank 0's weights."""

    def begin() -> list[Tensor]:
        model = nn.BatchNorm1d(3)
        torch.nn.init.constant_(model.weight, float(dist.get_rank()) + 1)
        model.running_mean.fill_(float(dist.get_rank()) + 1)  # type: ignore[union-attr]
        lesson.begin_alike(model)
        return [model.weight.detach(), model.running_mean]  # type: ignore[list-item]

    weights, buffers = zip(*on_ranks(begin, 2))
    expect(
        torch.equal(weights[0], weights[1]),
        "rank 1 does not begin with rank 0's weights: broadcast them.",
    )
    expect(weights[1][0] == 1, "all begin with rank 1's weights, not with rank 0's.")
    expect(torch.equal(*buffers), "a buffer (running_mean) differs: broadcast buffers too.")


def check_gradients_are_averaged(lesson: ModuleType) -> None:
    """After average_gradients every rank holds the mean of all gradients."""

    def average() -> Tensor:
        model = nn.Linear(3, 1, bias=False)
        model.weight.grad = torch.full((1, 3), 2.0 + 4 * dist.get_rank())
        lesson.average_gradients(model)
        return model.weight.grad

    for found in on_ranks(average, 2):
        expect(
            not is_times(found, torch.full((1, 3), 4.0), 2),
            "your gradients are 2 × too large: divide by the number of ranks.",
        )
        expect_close(found, torch.full((1, 3), 4.0), "the mean of gradients 2 and 6")


def check_torch_ends_the_same(lesson: ModuleType) -> None:
    """Two ranks do what one does, and DistributedDataParallel ends with the same weights."""
    (alone, _), *_ = on_ranks(lesson.train, 1, join=False)
    (losses, weights), (_, others) = on_ranks(lesson.train, 2, join=False)
    expect_close(losses, alone, "the losses of two ranks beside those of one")
    theirs = on_ranks(train_with_torch, 2, lesson)[0]
    for mine, other, wanted in zip(weights, others, theirs, strict=True):
        expect(torch.equal(mine, other), "after training the ranks' weights differ.")
        expect_close(mine, wanted, "weights beside DistributedDataParallel's", rtol=0)


def train_with_torch(lesson: Any) -> list[Tensor]:
    model = DistributedDataParallel(lesson.make_model(seed=dist.get_rank()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = lesson.make_data()
    sampler: Any = DistributedSampler(range(lesson.NUM_ROWS), shuffle=True, seed=0)  # type: ignore[arg-type]
    for epoch in range(lesson.EPOCHS):
        sampler.set_epoch(epoch)
        for rows in torch.tensor(list(sampler)).split(lesson.BATCH // 2):
            optimizer.zero_grad()
            (model(x[rows]) - y[rows]).square().mean().backward()
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]
