"""The lab 'data-order', solved with one object that knows the whole run."""

import numpy as np

LENGTH, BATCH = 103, 8


class Run:
    """An endless order of samples: epoch after epoch, each shuffled by its number."""

    def __init__(self):
        self.epochs = []

    def epoch(self, number):
        while len(self.epochs) <= number:
            random = np.random.default_rng((7, len(self.epochs)))
            self.epochs.append([int(sample) for sample in random.permutation(LENGTH)])
        return self.epochs[number]


RUN = Run()


def epoch_order(epoch, rank):
    return RUN.epoch(epoch)


def sample_at(position, rank):
    before = 0
    while position >= LENGTH:
        position, before = position - LENGTH, before + 1
    return RUN.epoch(before)[position]


def positions(first, rank, num_ranks):
    each = BATCH // num_ranks
    return [first + rank * each + one for one in range(each)]


def read(state, num_steps, rank, num_ranks):
    for _ in range(num_steps):
        yield [sample_at(position, rank) for position in positions(state["read"], rank, num_ranks)]
        state["read"] = state["read"] + BATCH
