"""Checks of the data order: epochs, ranks, and a run that stops and goes on with fewer ranks."""

from __future__ import annotations

from collections import Counter
from types import ModuleType

import numpy as np

from stepladder.data import SampleOrder
from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.grading.check_words import Mistake, expect, written

MISTAKES = (
    Mistake(
        "each rank shuffles with a seed of its own",
        "manual_seed(1000 * SEED + epoch)",
        "manual_seed(1000 * SEED + epoch + 100 * rank)",
        "the order must not depend on the rank",
    ),
    Mistake(
        "every epoch has the same order",
        "return epoch_order(epoch, rank)[place]",
        "return epoch_order(0, rank)[place]",
        "every epoch has the same order: shuffle anew",
    ),
    Mistake(
        "a rank's own samples are counted instead of all ranks'",
        'state["read"] += BATCH',
        'state["read"] += BATCH // num_ranks',
        "count those of all ranks",
    ),
    Mistake(
        "the last samples of an epoch are dropped",
        "epoch, place = divmod(position, LENGTH)",
        "epoch, place = divmod(position, LENGTH // BATCH * BATCH)",
        "samples of the first epoch are never read",
    ),
)
LENGTH, BATCH = 103, 8


def check_an_epoch(lesson: ModuleType) -> None:
    """In an epoch every sample comes once, in an order that all ranks agree on."""
    for epoch in (0, 1):
        orders = [written(lesson.epoch_order(epoch, rank), "epoch_order") for rank in range(3)]
        expect(
            sorted(orders[0]) == list(range(LENGTH)),
            f"epoch {epoch} has not every sample once: {len(set(orders[0]))} of {LENGTH}.",
        )
        expect(
            orders[0] == orders[1] == orders[2],
            f"ranks have different orders of epoch {epoch}: the order must not depend on the rank.",
        )
    expect(
        lesson.epoch_order(0, 0) != list(range(LENGTH)),
        "the samples come as they lie: shuffle them.",
    )


def check_the_run(lesson: ModuleType) -> None:
    """After one epoch comes the next, and nothing is left out where they meet."""
    run = [written(lesson.sample_at(place, 0), "sample_at") for place in range(2 * LENGTH)]
    first, second = run[:LENGTH], run[LENGTH:]
    missing = LENGTH - len(set(first))
    expect(
        not missing,
        f"{missing} samples of the first epoch are never read: it has {LENGTH} places, also where "
        "a step does not fit in.",
    )
    expect(first != second, "every epoch has the same order: shuffle anew for each.")
    expect(len(set(second)) == LENGTH, "the second epoch has not every sample once.")
    apart = sum(mine == theirs for mine, theirs in zip(first, second))
    expect(apart < LENGTH // 4, f"{apart} of {LENGTH} samples stand at the same place in both.")


def check_the_ranks(lesson: ModuleType) -> None:
    """A step reads the same samples on any number of ranks, each on one of them."""
    for ranks in (1, 2, 4):
        parts = [lesson.positions(96, rank, ranks) for rank in range(ranks)]
        together = sorted(place for part in parts for place in part)
        twice = [place for place, count in Counter(together).items() if count > 1]
        expect(not twice, f"{ranks} ranks: positions {twice} are read more than once.")
        expect(
            together == list(range(96, 104)),
            f"{ranks} ranks read positions {together} of the step at 96, not 96 to 103.",
        )
        expect(len({len(part) for part in parts}) == 1, f"{ranks} ranks: not equally many each.")


def check_the_state(lesson: ModuleType) -> None:
    """What is saved is how many samples all ranks have read."""
    for ranks in (1, 4):
        state = {"read": 0}
        for _ in lesson.read(state, 5, 0, ranks):
            pass
        expect(
            state["read"] == 5 * BATCH,
            f"after 5 steps of {BATCH} samples on {ranks} ranks the state says that "
            f"{state['read']} samples were read: count those of all ranks.",
        )


def check_a_run_goes_on(lesson: ModuleType) -> None:
    """Four ranks stop in an epoch, two go on: two epochs have every sample twice, no more."""
    begun, first = on_ranks(lesson.read_on_ranks, 4, 0, 5)[0]
    rest, last = on_ranks(lesson.read_on_ranks, 2, first, 21)[0]
    found = [sample for step in [*begun, *rest] for sample in step]
    expect(last == 26 * BATCH, f"after 26 steps the state says that {last} samples were read.")
    for epoch in (0, 1):
        counts = Counter(found_in(found, lesson, epoch))
        again = [sample for sample, count in counts.items() if count > 1]
        expect(not again, f"epoch {epoch}: {len(again)} samples were read more than once.")
        expect(len(counts) == LENGTH, f"epoch {epoch}: {LENGTH - len(counts)} samples are missing.")


def found_in(found: list[int], lesson: ModuleType, epoch: int) -> list[int]:
    """What was read of an epoch: steps are sorted by rank, so they are compared as sets."""
    run = [lesson.sample_at(place, 0) for place in range(len(found))]
    for at in range(0, len(found), BATCH):
        same = sorted(found[at : at + BATCH]) == sorted(run[at : at + BATCH])
        expect(same, f"the step at position {at} has other samples than the run's order has there.")
    return run[epoch * LENGTH : (epoch + 1) * LENGTH]


def check_stepladders_order(lesson: ModuleType) -> None:
    """SampleOrder keeps the same promises: each epoch has every sample once, in another order."""
    order = SampleOrder(LENGTH, seed=0)
    theirs = order.indices(np.arange(2 * LENGTH))
    mine = [lesson.sample_at(place, 0) for place in range(2 * LENGTH)]
    for epoch in (0, 1):
        part = slice(epoch * LENGTH, (epoch + 1) * LENGTH)
        expect(
            sorted(mine[part]) == sorted(theirs[part].tolist()),
            f"epoch {epoch} has other samples than SampleOrder's.",
        )
    assert not np.array_equal(theirs[:LENGTH], theirs[LENGTH:])
