"""Two clocks: what a step takes is worked out by hand here."""

import pytest

from stepladder.rehearse.time.operations import COLLECTIVE, MEMORY, Operation, Piece
from stepladder.rehearse.time.prices import Price
from stepladder.rehearse.time.timeline import play

US = 1e-6


def step(*spent, kinds=None, reads=(), writes=()):
    """Operations of so many microseconds of the device and of the host."""
    count = len(spent)
    kinds, reads = kinds or [MEMORY] * count, dict(reads)
    made = dict(writes)
    operations = [
        Operation(
            str(index), kinds[index], "forward",
            reads=tuple(Piece(s, 1, 4) for s in reads.get(index, ())),
            writes=tuple(Piece(s, 1, 4) for s in made.get(index, ())),
        )
        for index in range(count)
    ]  # fmt: skip
    return operations, [Price(device * US, host * US) for device, host in spent]


def seconds(operations, prices, processor=False):
    return play(operations, prices, processor=processor).seconds / US


def test_a_step_of_large_kernels_takes_as_long_as_they_do():
    assert seconds(*step((100, 10), (50, 10), (200, 10))) == pytest.approx(350)


def test_a_step_of_small_kernels_takes_as_long_as_asking_for_them():
    assert seconds(*step((1, 10), (2, 10), (1, 20))) == pytest.approx(40)
    assert seconds(*step((0, 5), (1, 10))) == pytest.approx(15)  # views are asked for too


def test_work_asked_for_early_hides_what_is_asked_for_slowly():
    # 90 us of work queue up; asking for 30 more takes 60 us, in which the queue is worked off.
    assert seconds(*step((90, 1), (1, 20), (1, 20), (1, 20))) == pytest.approx(93)


def test_a_processor_does_one_after_the_other():
    assert seconds(*step((100, 10), (50, 10)), processor=True) == pytest.approx(170)


def test_a_message_travels_beside_work_and_who_reads_it_waits():
    kinds = [COLLECTIVE, MEMORY, MEMORY]
    early = step((300, 1), (100, 1), (100, 1), kinds=kinds, writes={0: [7]}, reads={2: [7]})
    line = play(*early, processor=False)
    # Messages follow each other without a gap, and 200 us of work beside them leave 100 to wait.
    assert line.seconds / US == pytest.approx(300)
    assert line.exposed_seconds / US == pytest.approx(100)
    unread = step((300, 1), (100, 1), (100, 1), kinds=kinds, writes={0: [7]})
    assert play(*unread, processor=False).exposed_seconds == 0
