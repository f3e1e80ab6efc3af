"""Streams that the tests of them share."""

import random

import torch
from torch.utils.data import IterableDataset

ROWS = 43


def row(number):
    """A sample whose first input says which one it is."""
    draw = torch.Generator().manual_seed(number)
    x = torch.randn(16, generator=draw)
    x[0] = number
    return x, number % 5


class Counting(IterableDataset):
    """No position of its own: it begins at the first row each time."""

    def __init__(self, rows=ROWS):
        self.rows = rows

    def __iter__(self):
        return (row(number) for number in range(self.rows))


class Shuffling(Counting):
    """Draws its order, and noise, from the generators of the process."""

    def __iter__(self):
        order = torch.randperm(self.rows).tolist()
        for number in order:
            x, y = row(number)
            x[1] = random.random() + torch.rand(()).item()
            yield x, y


class Keeping(Counting):
    """As torchdata's datasets: knows its own position, and counts how many rows it made."""

    def __init__(self, rows=ROWS):
        super().__init__(rows)
        self.next, self.made = 0, 0

    def __iter__(self):
        while self.next < self.rows:
            self.next += 1
            self.made += 1
            yield row(self.next - 1)
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def generator():
    return (row(number) for number in range(ROWS))


def make(kind):
    kinds = {"counting": Counting, "shuffling": Shuffling, "keeping": Keeping}
    if kind == "generator":
        return generator()
    return kinds[kind]() if kind in kinds else hugging_face(kind)


def hugging_face(kind):
    """A streaming dataset of the real package: plain, mapped, or with its own shuffle buffer."""
    import datasets

    columns = {"x": [row(n)[0].tolist() for n in range(ROWS)], "n": list(range(ROWS))}
    stream = datasets.Dataset.from_dict(columns).to_iterable_dataset(num_shards=3)
    if kind == "hf buffer":
        stream = stream.shuffle(seed=7, buffer_size=10)
    if kind == "hf mapped":
        stream = stream.map(dict, batched=True, batch_size=7)
        stream = stream.filter(lambda one: one["n"] % 6 != 5)
    return stream
