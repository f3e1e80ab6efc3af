"""A DataLoader on several ranks trains on the batches that it gives on one process."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

from stepladder.errors import DataError, StepladderError
from stepladder.train import climb, fit
from tests.ranks import run
from tests.train.toys import net, pairs


def columns(rows=22):
    x, y = (torch.cat(parts) for parts in zip(*pairs(3)))
    return x[:rows], y[:rows]


class Rows(Dataset):
    """Rows as a dict with a name, which no module can read."""

    def __len__(self):
        return 22

    def __getitem__(self, index):
        x, y = columns()
        return {"x": x[index], "y": y[index], "name": f"row {index}"}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(*columns()))


class RankStream(IterableDataset):
    def __iter__(self):
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        return iter(list(zip(*columns()))[rank::2])


class Lazy(Sampler):
    """Chooses each batch when it is asked for, by all three generators."""

    def __iter__(self):
        for _ in range(4):
            first = int(np.random.randint(10)), random.randrange(10)
            yield [*first, *torch.randint(0, 22, (3,)).tolist()]


def as_pair(rows):
    named = [row["name"] for row in rows]
    assert named
    return torch.stack([row["x"] for row in rows]), torch.stack([row["y"] for row in rows])


def centred(rows):
    """What a batch's samples become depends on all of them."""
    x, y = torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])
    return [x - x.mean(0), y]


def loaders(kind):
    data = TensorDataset(*columns())
    weights = WeightedRandomSampler(torch.arange(22.0), 17)
    return {
        "in order": lambda: DataLoader(data, 5),
        "shuffled": lambda: DataLoader(data, 5, shuffle=True),
        "own generator": lambda: DataLoader(
            data, 6, shuffle=True, generator=torch.Generator().manual_seed(7)
        ),
        "drop_last": lambda: DataLoader(data, 5, shuffle=True, drop_last=True),
        "weighted": lambda: DataLoader(data, 4, sampler=weights),
        "batch sampler": lambda: DataLoader(data, batch_sampler=Lazy()),
        "last smaller than the ranks": lambda: DataLoader(data, 7),
        "workers": lambda: DataLoader(data, 5, shuffle=True, num_workers=1),
        "persistent": lambda: DataLoader(data, 5, num_workers=1, persistent_workers=True),
        "collate_fn": lambda: DataLoader(data, 5, shuffle=True, collate_fn=centred),
        "dicts": lambda: DataLoader(Rows(), 5, shuffle=True, collate_fn=as_pair),
        "stream": lambda: DataLoader(Stream(), 5),
        "whole batches": lambda: DataLoader(
            data, batch_size=None, sampler=BatchSampler(RandomSampler(data), 5, False)
        ),
    }[kind]()


def plain(kind):
    module = net(1)
    by = torch.optim.SGD(module.parameters(), 0.5)
    seed_all(11)
    for x, y in loaders(kind):
        by.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        by.step()
    return module


def seed_all(seed):
    torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)


def start(plan):
    return climb(net(1), loss="cross_entropy", optimizer="sgd lr=0.5", plan=plan, device="cpu")


def learn(kind, plan):
    taken = start(plan)
    loader = loaders(kind)
    seed_all(11 + taken.world.place.rank)  # ranks do not draw alike by themselves
    steps = sum(1 for _ in fit(taken, loader))
    held_out = taken.evaluate(DataLoader(TensorDataset(*columns(10)), 4))
    return [p.detach() for p in taken.module.parameters()], steps, taken.position, held_out


KINDS = [
    "in order", "shuffled", "own generator", "drop_last", "weighted", "batch sampler",
    "last smaller than the ranks", "workers", "persistent", "collate_fn", "dicts", "stream",
    "whole batches",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_train_on_the_batches_that_one_process_would(kind):
    expected = plain(kind)
    with torch.no_grad():
        x, y = columns(10)
        loss = torch.nn.functional.cross_entropy(expected(x), y).item()
    for ranks in (2, 3) if kind in ("shuffled", "last smaller than the ranks") else (2,):
        for parameters, steps, position, held_out in run(
            learn, ranks, kind, "fp32 ddp", init=False
        ):
            for mine, theirs in zip(parameters, expected.parameters()):
                assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-6)
            assert (steps, position) == {
                "drop_last": (4, 20), "own generator": (4, 22), "weighted": (5, 17),
                "batch sampler": (4, 20), "last smaller than the ranks": (4, 22),
            }.get(kind, (5, 22))  # fmt: skip
            assert held_out == pytest.approx(loss, rel=1e-4)


class Jittered(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        x, y = columns()
        noise = torch.randn(16) + random.random() + np.random.rand()
        return x[index] + noise, y[index]


def augmented(workers):
    taken = start("fp32 ddp")
    reports = fit(taken, DataLoader(Jittered(), 8, num_workers=workers))
    return [report.loss for report in reports]


def test_random_transforms_draw_the_same_with_any_workers():
    both = run(augmented, 2, 0, init=False) + run(augmented, 2, 1, init=False)
    assert all(losses == both[0] for losses in both) and len(both[0]) == 2


def refused(kind):
    taken = start("fp32 ddp")
    data, rows = TensorDataset(*columns()), None
    loader = DataLoader(RankStream(), 4)
    if kind == "rank":
        loader, rows = DataLoader(data, 4), "rank"
    if kind == "replicas":
        loader = DataLoader(data, 4, sampler=DistributedSampler(data, 4, taken.world.place.rank))
    try:
        list(fit(taken, loader, rows=rows))
    except StepladderError as error:
        return type(error) is DataError and taken.index == 0, str(error)


def test_rows_that_would_be_trained_twice_or_never_are_refused_by_all_ranks():
    for found in run(refused, 2, "rank", init=False):
        assert found == (
            True,
            "rows: 'rank' was given, and all 2 ranks read the same rows from the DataLoader. "
            "Leave rows out, and each rank takes its own rows of every batch.",
        )
    for found in run(refused, 2, "stream", init=False):
        assert found[0] and "data ranks 0 and 1 do not read the same batch" in found[1]
    for rank, found in enumerate(run(refused, 2, "replicas", init=False)):
        assert found[0] and f"reads part {rank} of 4, and this rank's rows" in found[1]


def distributed(rows):
    taken = start("fp32 ddp")
    data = TensorDataset(*columns(20))
    sampler = DistributedSampler(data, 2, taken.world.place.rank, shuffle=False)
    losses = [report.loss for report in fit(taken, DataLoader(data, 5, sampler=sampler), rows=rows)]
    return losses, taken.position


@pytest.mark.parametrize("rows", [None, "rank"])
def test_a_distributed_sampler_splits_the_rows_itself(rows):
    taken = start("fp32")
    x, y = columns(20)
    expected = [taken.step((x[part], y[part])).loss for part in (slice(0, 10), slice(10, 20))]
    for losses, position in run(distributed, 2, rows, init=False):
        assert losses == pytest.approx(expected, rel=1e-5) and position == 20


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net(1)

    def forward(self, x, name, labels, mask=None):
        assert mask is None and len(name) == len(x), "names go with their rows"
        return torch.nn.functional.cross_entropy(self.net(x), labels)


def with_names(rows):
    return {
        "x": torch.stack([row["x"] for row in rows]),
        "labels": torch.stack([row["y"] for row in rows]),
        "name": [row["name"] for row in rows],
        "mask": None,
    }


def named(plan):
    module = Named()
    taken = climb(module, optimizer="sgd lr=0.5", plan=plan, device="cpu")
    steps = sum(1 for _ in fit(taken, DataLoader(Rows(), 6, collate_fn=with_names)))
    return [p.detach() for p in module.parameters()], steps


def test_names_and_nothing_in_a_batch_go_with_its_rows():
    alone, steps = named("fp32")
    cut, _ = named("fp32 micro=2")
    both = run(named, 2, "fp32 ddp micro=2", init=False)
    for found in (cut, both[0][0], both[1][0]):
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(found, alone))
    assert steps == 4


def two_epochs(plan):
    """Rows of two epochs in a shuffled order, and what a loop draws between steps."""
    torch.manual_seed(3)
    run = start(plan)
    loader = DataLoader(TensorDataset(*columns(16)), batch_size=8, shuffle=True)
    losses, drawn = [], []
    for _ in range(2):
        for report in fit(run, loader):
            losses.append(report.loss)
            drawn.append(torch.rand(()).item() if len(drawn) > 2 else 0.0)
    return losses, drawn


def test_later_epochs_and_draws_of_the_loop_do_not_depend_on_the_ranks():
    losses, drawn = two_epochs("fp32")
    for found, also in run(two_epochs, 2, "fp32 ddp"):
        assert found == pytest.approx(losses, rel=1e-6) and also == drawn
