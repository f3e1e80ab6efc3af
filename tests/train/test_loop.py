"""The loop takes a series of batches, and says so of anything else."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from stepladder.errors import DataError, PlanError
from stepladder.train import climb, fit

PAIR = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)
SAMPLES = "Give run.batches(data, size=32), or DataLoader(data, batch_size=32)."


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (TensorDataset(*PAIR), f"data: a TensorDataset is samples and not batches. {SAMPLES}"),
        (3, f"data: a int is no series of batches. {SAMPLES}"),
        (PAIR, "data: a tuple is no series of batches. Give [batch]."),
        (PAIR[0], "data: a Tensor is no series of batches. Give [batch]."),
    ],
)
def test_what_is_no_series_of_batches_is_refused_in_a_line(given, said):
    run = climb(torch.nn.Linear(2, 2), loss="cross_entropy", plan="fp32", device="cpu")
    with pytest.raises(DataError) as refused:
        next(fit(run, given))
    assert str(refused.value) == said
    assert [report.step for report in fit(run, [PAIR])] == [0]


def test_what_is_no_run_and_no_number_of_steps_is_refused_in_a_line():
    module = torch.nn.Linear(2, 2)
    with pytest.raises(PlanError) as refused:
        next(fit(module, [PAIR]))
    assert str(refused.value) == (
        "fit: was given a Linear, and trains a run. Give it what climb returned."
    )
    run = climb(module, loss="cross_entropy", plan="fp32", device="cpu")
    with pytest.raises(PlanError) as refused:
        next(fit(run, [PAIR], steps="3"))
    assert str(refused.value) == (
        "steps: '3' is not a whole number of steps. Write one, or leave it out to take all batches."
    )


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        (iter([]), "A generator is spent after one loop"),
        ([], "A generator is spent after one loop"),
        (
            DataLoader(TensorDataset(*PAIR), 8, drop_last=True),
            "The loader has drop_last=True and fewer rows than a batch",
        ),
    ],
)
def test_a_loop_without_a_batch_warns(batches, said):
    run = climb(torch.nn.Linear(2, 2), loss="cross_entropy", plan="fp32", device="cpu")
    with pytest.warns(UserWarning, match=f"fit: there was no batch.*{said}"):
        assert list(fit(run, batches)) == []


def test_batches_without_a_size_say_how_many_rows_they_have():
    rows = [torch.zeros(4) for _ in range(3)]
    run = climb(torch.nn.Linear(4, 2), loss="cross_entropy", plan="fp32", device="cpu")
    said = r"so a batch has 1 row. Write run.batches\(data, size=32"
    with pytest.warns(UserWarning, match=said) as warned:
        run.batches(rows).close()
    assert warned[0].filename == __file__
    named = climb(torch.nn.Linear(4, 2), loss="cross_entropy", plan="fp32 batch=2", device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.batches(rows, size=2).close()
        named.batches(rows).close()
