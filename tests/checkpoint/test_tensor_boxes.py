"""A run of numbers is a few boxes, and boxes put it together again."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from stepladder.checkpoint import Box, whole_box
from stepladder.checkpoint.tensor_boxes import flat_boxes


@st.composite
def stretches(draw):
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))
    count = int(torch.Size(shape).numel())
    first = draw(st.integers(0, count))
    return shape, first, draw(st.integers(first, count))


@given(stretches())
def test_boxes_of_a_stretch_hold_its_numbers_in_order(stretch):
    shape, first, last = stretch
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    row = torch.full((last - first,), -1)
    boxes = list(flat_boxes(shape, first, last))
    for box, place in boxes:
        row[place] = box.view(whole).reshape(-1)
    assert row.tolist() == list(range(first, last))
    assert len(boxes) <= max(1, 2 * len(shape) - 1)


@st.composite
def boxes(draw, shape=(4, 5, 3)):
    start = tuple(draw(st.integers(0, n - 1)) for n in shape)
    return Box(start, tuple(draw(st.integers(1, n - a)) for a, n in zip(start, shape)))


@given(boxes(), boxes())
def test_what_two_boxes_share_is_what_both_hold(one, other):
    marks = torch.zeros(4, 5, 3, dtype=torch.int)
    one.view(marks).add_(1)
    other.view(marks).add_(1)
    common = one.common(other)
    assert int((marks == 2).sum()) == (common.count if common else 0)
    if common:
        assert (common.view(marks) == 2).all()
        assert torch.equal(common.inside(one).view(one.view(marks)), common.view(marks))


def test_the_whole_of_a_number_is_one():
    assert whole_box(()).count == 1
    assert list(flat_boxes((), 0, 1)) == [(Box((), ()), slice(0, 1))]
