"""Tables show what they are given, brackets included; JSON is JSON, whatever the numbers."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.cli.results.tables import as_json, cell, digits, gib, percent, plain, size, table


@dataclass
class Pair:
    name: str
    value: object


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (True, "yes"),
        (False, "no"),
        (3, "3"),
        (0.123456, "0.1235"),
        (19834.6, "19,835"),
        (1e300, "1e+300"),
        (math.nan, "nan"),
        ("x", "x"),
    ],
)
def test_a_cell_is_short_and_never_blank(value, text):
    assert cell(value) == text


def test_what_is_to_be_typed_is_not_broken_at_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    plan = "bf16 zero2 pipeline=2 shard=4 batch=64 micro=1 accumulate=16 schedule=interleaved:2"
    table("Plans", ["plan", "reason"], [[plan, "some words that may be broken"]], ["plan"])
    assert plan in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "text"),
    [(4070.0, "4,070"), (16608.9, "16,609"), (0.5, "0.5"), (999.6, "1,000"), (0, "0")],
)
def test_digits_are_written_as_people_write_them(value, text):
    assert digits(value) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (8192, "8 KiB"), (1.5 * 2**30, "1.5 GiB")]
)
def test_a_size_has_the_unit_that_suits_it(num_bytes, text):
    assert size(num_bytes) == text


def test_a_table_holds_its_title_its_columns_and_its_cells(capsys):
    table("Measured", ["what", "value"], [["loss", 1.5], ["mfu", None]])
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[:2] == [["Measured"], ["what", "value"]]
    assert lines[3:] == [["loss", "1.5"], ["mfu", "unknown"]]


def test_a_table_without_rows_is_its_head(capsys):
    table("Empty", ["a", "b"], [])
    assert capsys.readouterr().out.split()[:3] == ["Empty", "a", "b"]


@pytest.mark.parametrize("text", ["[bold]", "[/nothing]", "a[0]", "[red]x[/red]", "\\[x]"])
def test_brackets_are_only_brackets(text, capsys):
    table(text, [text], [[text]])
    assert capsys.readouterr().out.count(text) == 3


def test_numbers_stand_to_the_right_and_words_to_the_left(capsys):
    table("", ["name", "number"], [["a", 1], ["bbbbbbbb", 100]])
    rows = capsys.readouterr().out.splitlines()[-3:-1]
    ends = [len(row.rstrip()) for row in rows]
    assert ends[0] == ends[1]
    assert [row.index(row.strip()[0]) for row in rows] == [2, 2]


def test_a_pipe_gets_long_lines_unfolded(capsys):
    table("", ["text"], [["x" * 150]])
    assert "x" * 150 in capsys.readouterr().out


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(Path("a/b")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner)
    | st.builds(Pair, st.text(), inner),
    max_leaves=8,
)  # fmt: skip


@given(values)
def test_whatever_is_shown_is_strict_json(value):
    text = json.dumps(plain(value), allow_nan=False)
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_json_keeps_what_it_has_words_for(capsys):
    as_json({"pair": Pair("a", (1, 2.5, None, True)), 3: math.inf, "path": Path("x")})
    assert json.loads(capsys.readouterr().out) == {
        "pair": {"name": "a", "value": [1, 2.5, None, True]},
        "3": "inf",
        "path": "x",
    }


def test_units_are_written_out():
    assert gib(3 * 2**29) == "1.50 GiB"
    assert percent(0.4567) == "45.7%"
    assert gib(None) == percent(None) == "unknown"
