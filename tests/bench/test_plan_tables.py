"""Tables by precision, batch and recomputation: what is measured where the user states little."""

import pytest

from stepladder.bench.plan_tables import (
    PRECISIONS,
    TableSettings,
    batch_sizes,
    measure_batch_sizes,
    measure_precisions,
)
from stepladder.errors import PlanError


def test_a_cpu_measures_a_small_model_and_what_is_stated_stays():
    assert TableSettings.fill("cpu") == TableSettings("gpt-tiny", 8, 128, "cpu")
    stated = TableSettings.fill("cpu", model="llama-tiny", batch=2, sequence=16)
    assert stated == TableSettings("llama-tiny", 2, 16, "cpu")


def test_batches_are_powers_of_two_up_to_the_largest():
    assert batch_sizes(8) == [1, 2, 4, 8] and batch_sizes(7) == [1, 2, 4]


def test_each_batch_size_is_a_row():
    settings = TableSettings("mlp-tiny", 4, 16, "cpu")
    rows = list(measure_batch_sizes(settings, "", largest=2, steps=1))
    assert [row.name for row in rows] == ["1", "2"] and all(row.step_ms for row in rows)


def test_words_that_are_no_plan_are_refused_before_anything_is_measured():
    with pytest.raises(PlanError, match="nonsense"):
        measure_precisions(TableSettings("mlp-tiny", 4, 16, "cpu"), "nonsense", steps=1)


def test_every_precision_is_a_row_or_says_why_not():
    settings = TableSettings("mlp-tiny", 4, 16, "cpu")
    rows = {row.name: row for row in measure_precisions(settings, "", steps=1)}
    assert tuple(rows) == PRECISIONS
    assert rows["fp32"].step_ms and all(row.step_ms or row.problem for row in rows.values())
