"""Modules and losses whose results follow from what they hold outside of any state_dict."""

import random
from collections import deque

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.prepare()

    def prepare(self):
        pass

    def factor(self, hidden):
        return 1.0

    def forward(self, x):
        hidden = torch.tanh(self.inner(x))
        return self.head(hidden * self.factor(hidden.detach()))


class Counter(Plain):
    def prepare(self):
        self.calls = 0

    def factor(self, hidden):
        self.calls += 1
        return 1 + 0.1 * self.calls


class History(Plain):
    def prepare(self):
        self.means = deque(maxlen=3)

    def factor(self, hidden):
        self.means.append(hidden.mean())
        return 1 + sum(self.means)


class Average(Plain):
    def prepare(self):
        self.mean = torch.zeros(8)

    def factor(self, hidden):
        self.mean = 0.9 * self.mean + 0.1 * hidden.mean(0)
        return 1 + self.mean


class Nested(Plain):
    def prepare(self):
        self.kept = {"means": [torch.zeros(8)], "calls": np.zeros(2)}

    def factor(self, hidden):
        self.kept["means"][0].mul_(0.9).add_(hidden.mean(0))
        self.kept["calls"][1] += 0.1
        return 1 + self.kept["means"][0] + float(self.kept["calls"][1])


class LateCache(Plain):
    def factor(self, hidden):
        if not hasattr(self, "first"):
            self.first = hidden.mean(0)
        return 1 + self.first


class NotPersistent(Plain):
    def prepare(self):
        self.register_buffer("mean", torch.zeros(8), persistent=False)

    def factor(self, hidden):
        self.mean = 0.5 * self.mean + hidden.mean(0)
        return 1 + self.mean


class Tally:
    def __init__(self):
        self.count, self.sums = 0, [0.0]

    def add(self, number):
        self.count += 1
        self.sums[0] += number


class HoldsObject(Plain):
    def prepare(self):
        self.tally = Tally()

    def factor(self, hidden):
        self.tally.add(float(hidden.mean()))
        return 1 + 0.1 * self.tally.count + self.tally.sums[0]


class OfTheClass(Plain):
    calls = 0

    def factor(self, hidden):
        type(self).calls += 1
        return 1 + 0.1 * type(self).calls


class Generators(Plain):
    def prepare(self):
        self.torch, self.numpy = torch.Generator().manual_seed(0), np.random.default_rng(0)
        self.old, self.python = np.random.RandomState(0), random.Random(0)

    def factor(self, hidden):
        noise = torch.rand(8, generator=self.torch)
        return 1 + noise + self.numpy.random() + self.old.rand() + self.python.random()


class CountingLoss:
    def __init__(self):
        self.calls, self.noise = 0, torch.Generator().manual_seed(0)

    def __call__(self, outputs, targets):
        self.calls += 1
        moved = outputs + torch.rand(outputs.shape, generator=self.noise)
        return F.cross_entropy(moved, targets) * (1 + 0.01 * self.calls)


class LossModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.noise = torch.Generator().manual_seed(0)

    def forward(self, outputs, targets):
        return F.cross_entropy(outputs + torch.rand(outputs.shape, generator=self.noise), targets)


def closure_loss():
    calls = 0

    def loss(outputs, targets):
        nonlocal calls
        calls += 1
        return F.cross_entropy(outputs, targets) * (1 + 0.1 * calls)

    return loss


def named():
    return "cross_entropy"


class Iterates(Plain):
    def prepare(self):
        self.numbers = iter(range(1000))

    def factor(self, hidden):
        return 1 + next(self.numbers)


KINDS = [
    *((kind, named) for kind in (Counter, History, Average, Nested, LateCache, NotPersistent,
                                 HoldsObject, OfTheClass, Generators)),
    *((Plain, loss) for loss in (CountingLoss, LossModule, closure_loss)),
]  # fmt: skip


def kind_name(value):
    return value.__name__


def batches(count=6):
    draw = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 6, generator=draw), torch.randint(0, 3, (8,), generator=draw))
        for _ in range(count)
    ]


def made(kind):
    """A new module, as a new process would build it."""
    torch.manual_seed(5)
    OfTheClass.calls = 0
    return kind()
