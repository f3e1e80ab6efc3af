"""Numbers and texts are read strictly: what is accepted can be computed with and written back."""

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.plan.typed_values import LARGEST, real, toml_value, whole, word_of, writable


@given(st.integers(-LARGEST + 1, LARGEST - 1))
def test_a_whole_number_reads_back(number):
    assert whole(str(number)) == whole(number) == number


@pytest.mark.parametrize("text", ["", "x", "1.0", "²", "١", "9" * 5000, str(LARGEST), "--1"])
def test_what_is_no_whole_number_is_none(text):
    assert whole(text) is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_finite_number_reads_back(number):
    assert real(repr(number)) == number


@pytest.mark.parametrize("value", ["", "x", "nan", "inf", "-inf", "1e999", "١", 10**400])
def test_what_is_no_finite_number_is_none(value):
    assert real(value) is None


def test_text_no_file_can_hold_is_not_writable():
    assert writable("runs/é😀")
    assert not writable("a\0")
    assert not writable("\udcff")


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_any_writable_text_is_written_as_toml(text):
    assert tomllib.loads(f"a = {toml_value(text)}") == {"a": text}


@given(
    st.integers(-(2**53), 2**53) | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
)
def test_numbers_and_switches_are_written_as_toml(value):
    assert tomllib.loads(f"a = {toml_value(value)}") == {"a": value}


def test_a_tables_value_is_the_word_one_would_type():
    assert [word_of(v) for v in (True, False, 3, 0.5, "x", [1, "a"])] == [
        "on",
        "off",
        "3",
        "0.5",
        "x",
        "1,a",
    ]
    assert word_of({}) == "a table"
    assert word_of(int("f" * 5000, 16)) == "int…"
    nested: list = []
    for _ in range(10**5):
        nested = [nested]
    assert word_of(nested).endswith("list…")
    assert json.loads(toml_value([1, "a"])) == [1, "a"]
