"""Random transforms draw by seed and position, whoever reads the sample and whenever."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from stepladder.data import Arrays, batches
from stepladder.data.loading.sample_seeds import may_draw
from stepladder.data.loading.workers import Workers
from stepladder.data.mixture import Mixture
from stepladder.data.validation_split import SplitSource


class Jittered(Dataset):
    """Draws from all three generators, a different number of times for every sample."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        noise = [torch.rand(()).item() for _ in range(index % 3 + 1)]
        return torch.tensor([float(index), noise[-1], np.random.rand(), random.random()])


def read(workers, *, start=0, steps=6, share=None, disturb=False):
    found = []
    with batches(Jittered(), size=4, seed=3, start=start, workers=workers, share=share) as feed:
        for _ in range(steps):
            found.append(next(feed).inputs)
            if disturb:  # as a step does, and a user between steps
                torch.manual_seed(0), torch.rand(3), np.random.rand(), random.random()
    return torch.cat(found)


@pytest.mark.parametrize("workers", ["auto", 2])
def test_a_random_transform_draws_the_same_with_any_workers_and_after_a_resume(workers):
    whole = read(0)
    assert torch.equal(read(workers, disturb=True), whole)
    assert torch.equal(read(workers, start=12, steps=3), whole[12:])
    assert len({tuple(row) for row in whole.tolist()}) == 24, "each epoch draws anew"


def test_a_ranks_rows_are_transformed_as_in_the_whole_batch():
    mine = read(0, share=lambda step, size: np.arange(2, 4))
    assert torch.equal(mine, read(0).reshape(6, 4, 4)[:, 2:].reshape(12, 4))


def test_reading_leaves_the_generators_of_the_step_alone():
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = torch.rand(2).tolist(), np.random.rand(), random.random()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    read(0, steps=2)
    assert (torch.rand(2).tolist(), np.random.rand(), random.random()) == expected


def test_another_seed_draws_other_numbers():
    one, other = (
        next(batches(Jittered(), size=10, seed=seed, shuffle=False, workers=0)).inputs
        for seed in (0, 1)
    )
    assert not torch.isclose(one[:, 1:], other[:, 1:]).any()


def test_only_a_source_that_may_draw_is_kept_from_threads():
    data = Jittered()
    stored = [torch.arange(3), [1, 2], Arrays(torch.arange(4)), TensorDataset(torch.arange(4))]
    for source in [*stored, Subset(stored[-1], [0, 1]), SplitSource(stored[2], "train")]:
        assert not may_draw(source) and Workers.parse(2, source) == Workers(2)
    for source in (
        data,
        Subset(data, [0]),
        SplitSource(data, "train"),
        Mixture([data, [1]], [1, 1]),
    ):
        assert may_draw(source) and Workers.parse(2, source).processes
        assert Workers.parse("auto", source, "cpu") == Workers(0)
        assert Workers.parse("auto", source, "cuda").forked
