"""The words in which a check says how far off an answer is."""

import math

import pytest
import torch

from stepladder.labs.grading.check_words import expect_close, is_times, ratio
from stepladder.labs.grading.digits import apart
from stepladder.labs.grading.finding import Finding, Wrong


def said(found, wanted, **how) -> str:
    with pytest.raises(Wrong) as caught:
        expect_close(found, wanted, "the loss", **how)
    return str(caught.value)


def test_a_factor_is_named():
    assert said(8.0, 2.0) == "the loss: 8, expected 2 (4 × too large)."
    assert said(torch.tensor([1.0, 2.0]), [4.0, 8.0]).endswith("(4 × too small).")
    assert said(-2.0, 2.0).endswith("(-1 × it).")


def test_what_is_not_a_factor_is_shown():
    assert said([1.0, 2.0], [2.0, 1.0]) == (
        "the loss: [1, 2], expected [2, 1]; furthest apart at [0]: 1, expected 2."
    )
    assert "furthest apart at [1, 0]: 3, expected 2" in said([[1.0], [3.0]], [[1.0], [2.0]])


def test_as_many_digits_are_shown_as_tell_two_numbers_apart():
    with pytest.raises(Wrong) as caught:
        expect_close(0.69314701, 0.69314718, "the loss", rtol=0)
    assert str(caught.value) == "the loss: 0.6931470, expected 0.6931472."
    finding = Finding("A claim.", False, str(caught.value), caught.value.found, "0.6931472")
    assert finding.marked_digits() == [
        "found     0.6931470",
        "expected  0.6931472",
        "                  ^",
    ]
    assert Finding("A claim.", False, "8, expected 2", "8", "2").marked_digits() == []


@pytest.mark.parametrize(
    ("pair", "shown"),
    [
        ((1e-9, 2e-9), ("1.00000e-09", "2.00000e-09")),
        ((1234567.0, 1234568.0), ("1234567", "1234568")),
        ((0.1, 0.1), ("0.10000000000000001", "0.10000000000000001")),
        ((99.5, 100.5), ("99.5", "100.5")),
        ((float("inf"), 1.0), ("inf", "1")),
    ],
)
def test_numbers_are_written_as_people_do(pair, shown):
    assert apart(*pair) == shown


def test_shapes_kinds_and_infinities_are_told_apart():
    assert "the shape is (2,), expected (3,)" in said(torch.ones(2), torch.ones(3))
    assert said(math.nan, 1.0) == "the loss: not a finite number."
    assert said("four", 4.0) == "the loss: str is not a number or a tensor."
    assert said(None, 4.0) == "the loss is not written yet: it gave None."


def test_exact_is_exact_and_close_is_relative_to_the_largest():
    expect_close(1.0, 1.0 + 1e-7, "the loss")
    said(1.0, 1.0 + 1e-7, rtol=0)
    expect_close([1e-9, 1.0], [0.0, 1.0], "the loss")


def test_a_ratio_is_one_for_all_numbers_or_none():
    assert ratio([2.0, 4.0], [1.0, 2.0]) == pytest.approx(2)
    assert math.isnan(ratio([2.0, 4.0], [1.0, 3.0]))
    assert is_times([2.0, 4.0], [1.0, 2.0], 2) and not is_times([2.0, 4.0], [1.0, 2.0], 3)
