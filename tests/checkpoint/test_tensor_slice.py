"""A range of a flattened tensor is a few slices, and the slices put it together again."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from stepladder.checkpoint import TensorSlice, whole_slice
from stepladder.checkpoint.tensor_slice import slices_of_range


@st.composite
def ranges(draw):
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))
    count = int(torch.Size(shape).numel())
    first = draw(st.integers(0, count))
    return shape, first, draw(st.integers(first, count))


@given(ranges())
def test_slices_of_a_range_hold_its_elements_in_order(flat_range):
    shape, first, last = flat_range
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    row = torch.full((last - first,), -1)
    slices = list(slices_of_range(shape, first, last))
    for part, place in slices:
        row[place] = part.view(whole).reshape(-1)
    assert row.tolist() == list(range(first, last))
    assert len(slices) <= max(1, 2 * len(shape) - 1)


@st.composite
def slices(draw, shape=(4, 5, 3)):
    start = tuple(draw(st.integers(0, n - 1)) for n in shape)
    return TensorSlice(start, tuple(draw(st.integers(1, n - a)) for a, n in zip(start, shape)))


@given(slices(), slices())
def test_what_two_slices_share_is_what_both_hold(one, other):
    marks = torch.zeros(4, 5, 3, dtype=torch.int)
    one.view(marks).add_(1)
    other.view(marks).add_(1)
    shared = one.intersection(other)
    assert int((marks == 2).sum()) == (shared.count if shared else 0)
    if shared:
        assert (shared.view(marks) == 2).all()
        assert torch.equal(shared.relative_to(one).view(one.view(marks)), shared.view(marks))


def test_the_whole_slice_of_a_scalar_has_one_element():
    assert whole_slice(()).count == 1
    assert list(slices_of_range((), 0, 1)) == [(TensorSlice((), ()), slice(0, 1))]
