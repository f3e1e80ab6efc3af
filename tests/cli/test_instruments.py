"""What a run writes of itself while it trains."""

import os
import time

import pytest
from torch.optim.optimizer import register_optimizer_step_pre_hook

from stepladder.cli.main import main
from stepladder.record import read_journal
from tests.ranks import run as run_ranks

from .test_train import TINY

pytestmark = pytest.mark.xdist_group("ranks")


def train(folder, *words):
    return main(["train", *TINY, "--run.folder", str(folder), "--plan", "fp32", *words])


def test_memory_by_owner_stands_at_every_report(tmp_path, capsys):
    assert train(tmp_path / "run", "--train.steps", "4") == 0
    capsys.readouterr()
    entries = list(read_journal(tmp_path / "run", kind="memory"))
    steps = [entry["step"] for entry in read_journal(tmp_path / "run", kind="step")]
    assert [entry["step"] for entry in entries] == steps
    for entry in entries:
        assert sum(entry["owners"].values()) == entry["peak_bytes"] < entry["limit_bytes"]
    assert entries[0]["owners"].keys() == {"parameters", "context"}, "nothing is measured yet"
    assert {"parameters", "optimizer", "activations"} < entries[-1]["owners"].keys()


def slow_rank(folder):
    """Train as one of two ranks, of which the second sleeps in its optimizer."""
    slow = os.environ["RANK"] == "1"
    hook = register_optimizer_step_pre_hook(lambda *_: time.sleep(0.15 * slow))
    try:
        return train(folder, "--train.steps", "6", "--train.report_every", "1")
    finally:
        hook.remove()


def test_a_slow_rank_is_an_event_of_the_run(tmp_path):
    assert run_ranks(slow_rank, 2, str(tmp_path / "run"), init=False) == [0, 0]
    entries = list(read_journal(tmp_path / "run", kind="ranks"))
    assert len(entries) == 5, "one a report, told at the next"
    assert all(len(entry[key]) == 2 for entry in entries
               for key in ("own_seconds", "wait_seconds", "memory_bytes"))  # fmt: skip
    events = [entry["text"] for entry in read_journal(tmp_path / "run", kind="event")]
    named = [text for text in events if "slower than the median" in text]
    assert len(named) == 1 and "rank 1 is" in named[0], events
