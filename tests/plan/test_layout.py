"""A layout is a box: every rank has one place in it, and every place one rank."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.errors import PlanError
from stepladder.plan import AXES, Layout
from stepladder.plan.layout import REST

from . import strategies as some


@given(some.layouts)
def test_places_are_a_bijection_onto_the_box(layout):
    places = [tuple(layout.place(rank).values()) for rank in range(layout.num_ranks)]
    assert places == list(product(*map(range, layout.shape)))  # in this order: tensor is fastest


def test_a_place_names_every_axis_in_order():
    place = Layout(pipeline=2, shard=2, tensor=3).place(7)
    assert list(place) == list(AXES)
    wanted = {"pipeline": 1, "replicate": 0, "shard": 0, "experts": 0, "context": 0, "tensor": 1}
    assert place == wanted


@given(some.layouts)
def test_each_data_index_is_held_by_equally_many_ranks(layout):
    held = [layout.data_index(rank) for rank in range(layout.num_ranks)]
    each = layout.num_ranks // layout.data_ranks
    assert sorted(held) == sorted(list(range(layout.data_ranks)) * each)


@given(some.layouts)
def test_ranks_that_differ_only_in_model_axes_share_their_data(layout):
    for rank in range(layout.num_ranks):
        place = layout.place(rank)
        assert layout.data_index(rank) == place["replicate"] * layout.shard + place["shard"]


@given(some.layouts, st.sampled_from(AXES))
def test_the_open_axis_takes_the_rest(layout, axis):
    assert some.open_one(layout, axis).settle(layout.num_ranks) == layout


def test_a_closed_layout_settles_as_itself_on_its_own_number_of_ranks():
    assert Layout(shard=4).settle(4) == Layout(shard=4)
    with pytest.raises(PlanError) as raised:
        Layout(shard=4).settle(3)
    assert str(raised.value) == (
        "layout: is for 4 ranks (shard=4), and there are 3 ranks. "
        "Use 4, or leave one axis open with -1."
    )


def test_ranks_that_do_not_divide_name_a_multiple():
    with pytest.raises(PlanError) as caught:
        Layout(shard=REST, tensor=4).settle(6)
    assert str(caught.value) == (
        "layout.shard: 6 ranks do not divide by the other axes (4). Use a multiple of 4 ranks."
    )


def test_every_impossible_number_is_reported():
    problems = Layout(pipeline=0, replicate=REST, shard=-2, context=REST).problems()
    assert [str(problem) for problem in problems] == [
        "layout.pipeline: 0 is not a number of ways to split. "
        "Use 1 to leave it out, or -1 for the rest of the ranks.",
        "layout.shard: -2 is not a number of ways to split. "
        "Use 1 to leave it out, or -1 for the rest of the ranks.",
        "layout: replicate and context are both -1. Leave one of them open.",
    ]


def test_a_layout_is_named_by_the_axes_it_uses():
    assert str(Layout()) == "one rank"
    assert str(Layout(shard=4, tensor=2)) == "shard=4 tensor=2"
