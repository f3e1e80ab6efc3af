import random
from itertools import pairwise

import pytest

from stepladder.trace.intervals import intersect, length, subtract, union


def points(intervals):
    return {moment for start, end in intervals for moment in range(start, end)}


def some(draw):
    starts = [draw.randrange(40) for _ in range(draw.randrange(8))]
    return [(start, start + draw.randrange(9)) for start in starts]


@pytest.mark.parametrize("seed", range(200))
def test_sets_of_moments_behave_as_sets(seed):
    draw = random.Random(seed)
    raw, other = some(draw), union(some(draw))
    one = union(raw)
    assert points(one) == points(raw)
    assert all(a[1] < b[0] for a, b in pairwise(one)), "disjoint, and in order"
    assert points(intersect(one, other)) == points(one) & points(other)
    assert points(subtract(one, other)) == points(one) - points(other)
    assert length(one) == len(points(one))
    assert length(intersect(one, other)) + length(subtract(one, other)) == length(one)
