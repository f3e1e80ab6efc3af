import os

import pytest

from stepladder.data import Arrays, Workers
from stepladder.errors import DataError


class Pictures(list):
    parallel = True


class Stacked(Pictures):
    def fetch(self, indices):
        return indices


def test_auto_gives_one_thread_unless_several_are_safe_and_pay():
    assert Workers.parse("auto", Arrays([1])) == Workers(1)
    assert Workers.parse("auto", [1]) == Workers(1)
    assert Workers.parse("auto", Stacked()) == Workers(1)
    assert Workers.parse("auto", Pictures()) == Workers(min(4, os.cpu_count()))


def test_counts_and_kinds_are_read():
    assert Workers.parse(0, []) == Workers(0)
    assert Workers.parse(3, []) == Workers.parse("3 threads", []) == Workers(3)
    assert Workers.parse("2 processes", []) == Workers(2, processes=True)


@pytest.mark.parametrize("wanted", ["many", "2 cats", -1, "0 processes", 1.5])
def test_what_is_not_a_number_of_workers_is_refused(wanted):
    with pytest.raises(
        DataError, match=r"workers: .* is not a number of workers. Use 'auto', a number"
    ):
        Workers.parse(wanted, [])
