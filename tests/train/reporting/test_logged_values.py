"""Values that a training loop logs are kept, written once, and finite numbers."""

import math

import numpy as np
import pytest
import torch

from stepladder.errors import RecordError
from stepladder.record import read_journal
from stepladder.track import open_journal
from stepladder.train import climb
from tests.ranks import run as on_ranks
from tests.train.toys import net, pairs


def start(plan="fp32"):
    return climb(net(), loss="cross_entropy", plan=plan, device="cpu")


def test_without_a_journal_values_are_kept_on_the_run():
    run = start()
    run.log("accuracy", 1)
    for batch in pairs(3):
        run.step(batch)
    run.log("accuracy", torch.tensor([0.5]))
    run.log("f1", np.float32(0.25), step=7)
    assert run.logged == {"accuracy": [(0, 1.0), (2, 0.5)], "f1": [(7, 0.25)]}


def test_a_journal_of_ones_own_takes_them_where_it_is_the_runs(tmp_path):
    run = start()
    with open_journal(tmp_path) as run.journal:
        run.log("accuracy", 0.5)
    (entry,) = read_journal(tmp_path)
    assert entry == {"kind": "logged", "step": 0, "name": "accuracy", "value": 0.5}


def journalled(folder):
    run = start("fp32 ddp")
    with run.open_journal(folder) as journal:
        for batch in pairs(2):
            journal.write("step", **run.step(batch, rows="global").to_dict())
            run.log("rank", run.world.place.rank)
    assert run.journal is None
    return run.logged


def test_an_outer_journal_goes_on_after_an_inner_one(tmp_path):
    run = climb(net(), loss="cross_entropy", plan="fp32", device="cpu")
    with run.open_journal(tmp_path / "outer"):
        with run.open_journal(tmp_path / "inner"):
            run.log("x", 1.0)
        run.log("y", 2.0)
    names = {
        folder: [e["name"] for e in read_journal(tmp_path / folder) if e["kind"] == "logged"]
        for folder in ("outer", "inner")
    }
    assert names == {"outer": ["y"], "inner": ["x"]}


def test_every_rank_calls_and_rank_0_writes(tmp_path):
    found = on_ranks(journalled, 2, str(tmp_path), init=False)
    assert found == [{"rank": [(0, rank), (1, rank)]} for rank in (0.0, 1.0)]
    kinds = [entry["kind"] for entry in read_journal(tmp_path)]
    assert kinds == ["start", "step", "logged", "step", "logged", "end"]
    start, *_ = read_journal(tmp_path)
    assert (start["plan"], start["step"], start["ranks"]) == ("fp32 replicate=2", 0, 2)
    assert [entry["value"] for entry in read_journal(tmp_path, kind="logged")] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("", 1), "log: '' is not a name that every tracker takes. Use up to 100 letters"),
        (("step", 1), "log: 'step' is not a name that every tracker takes"),
        (("a\nb", 1), "log: 'a\\nb' is not a name that every tracker takes"),
        (("a", 1, -1), "log.a: -1 is not the number of a step. Use 0 or more, or leave it out."),
        (("a", 1, 0.5), "log.a: 0.5 is not the number of a step"),
        (("a", math.nan), "log.a: nan cannot be drawn, only finite numbers can. Log it only where"),
        (("a", torch.tensor(math.inf)), "log.a: inf cannot be drawn, only finite numbers can"),
        (("a", torch.ones(2)), "log.a: a Tensor of shape (2,) is not one number. Log a number or"),
        (("a", "high"), "log.a: a str is not one number"),
        (("a", True), "log.a: a bool is not one number"),
    ],
)
def test_what_cannot_be_drawn_is_told_in_one_line(given, said):
    run = start()
    with pytest.raises(RecordError) as refused:
        run.log(*given)
    assert str(refused.value).startswith(said) and run.logged == {}
