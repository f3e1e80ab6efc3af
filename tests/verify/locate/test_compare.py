"""A tensor beside what it should be."""

import math

import torch

from stepladder.verify.locate.compare import compare, compare_unordered
from stepladder.verify.locate.sites import Site, same_bits

SITE = Site("output", "a")


def test_bits_are_compared_before_numbers():
    nan = torch.tensor([math.nan, 1.0])
    assert same_bits(nan, nan.clone()) and not same_bits(torch.zeros(1), -torch.zeros(1))
    assert not same_bits(torch.zeros(1), torch.zeros(1).double())
    assert compare(SITE, 0, nan, [torch.ones(2), nan.clone()]).same_bits


def test_the_nearest_of_several_counts_with_its_factor():
    right = torch.tensor([3.0, 4.0])
    found = compare(SITE, 0, 2 * right, [-right, right])
    assert (found.distance, found.norm, found.factor) == (5.0, 5.0, 2.0)
    assert found.unscaled == 0 and not found.same_bits


def test_equal_infinities_differ_by_nothing_and_a_lost_number_by_everything():
    assert (
        compare(SITE, 0, torch.tensor([math.inf, 1.5]), [torch.tensor([math.inf, 1.0])])[3] == 0.5
    )
    assert compare(SITE, 0, torch.tensor([math.nan]), [torch.tensor([1.0])]).distance == math.inf


def test_rows_that_a_router_sorted_are_found_in_any_order():
    whole = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    found = compare(SITE, 0, whole[[5, 2]], [whole[:2]])
    assert found.distance > 1
    assert compare_unordered(found, whole[[5, 2]], whole).distance == 0
    moved = whole[[5, 2]] + 0.1
    assert compare_unordered(compare(SITE, 0, moved, [whole[:2]]), moved, whole).distance > 0.1
