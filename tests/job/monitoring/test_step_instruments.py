"""What a run writes of itself while it trains."""

import os
import signal
import time
from contextlib import redirect_stdout
from io import StringIO

from torch.optim.optimizer import register_optimizer_step_pre_hook

from stepladder.cli.main import main
from stepladder.job.monitoring.step_instruments import MOST_STEPS_BETWEEN, StepInstruments
from stepladder.job.summary.forecast_comparison import ForecastComparison
from stepladder.model import build
from stepladder.record import Journal, Report, read_journal
from stepladder.train import climb
from tests.cli.commands.test_train import TINY
from tests.ranks import run as run_ranks


def train(folder, *words):
    return main(["train", *TINY, "--run.folder", str(folder), "--plan", "fp32", *words])


def test_memory_by_owner_is_told_when_it_moves(tmp_path, capsys):
    assert train(tmp_path / "run", "--train.steps", "4") == 0
    capsys.readouterr()
    entries = list(read_journal(tmp_path / "run", kind="memory"))
    steps = [entry["step"] for entry in read_journal(tmp_path / "run", kind="step")]
    assert entries[0]["step"] == steps[0] and {entry["step"] for entry in entries} <= set(steps)
    for entry in entries:
        assert sum(entry["owners"].values()) == entry["peak_bytes"] < entry["limit_bytes"]
    assert entries[0]["owners"].keys() == {"parameters", "context"}, "nothing is measured yet"
    assert {"parameters", "optimizer", "activations"} < entries[-1]["owners"].keys()


def test_memory_that_stands_still_is_told_seldom(tmp_path):
    run = climb(build("gpt-tiny", sequence=16), loss="cross_entropy", plan="fp32", device="cpu")
    comparison = ForecastComparison(run, None)
    with Journal(tmp_path) as journal, StepInstruments(run, comparison) as instruments:
        for step in range(1, MOST_STEPS_BETWEEN + 2):
            grown = 2**20 if step > 50 else 0
            instruments.read(report_of(step, 2**30 + grown + step), journal)
        instruments.read(report_of(step + 1, 2**31), journal)
    told = [entry["step"] for entry in read_journal(tmp_path, kind="memory")]
    assert told == [1, MOST_STEPS_BETWEEN + 1, MOST_STEPS_BETWEEN + 2]


def report_of(step, memory_bytes):
    return Report(
        step=step, loss=1.0, grad_norm=1.0, lr=0.1, tokens=1, seconds=1.0,
        memory_bytes=memory_bytes, tokens_per_second=1.0, rank_memory_bytes=memory_bytes,
    )  # fmt: skip


PIPED = "gpt:layers=2,hidden=64,heads=2,vocab=256"


def profiled_pipeline(folder):
    words = ["--model.name", PIPED, "--model.sequence", "16", "--train.steps", "5"]
    words += ["--plan", "fp32 pipeline=2 micro=1", "--train.profile_every", "2"]
    with redirect_stdout(StringIO()) as said:
        code = train(folder, *words)
    return code, said.getvalue()


def test_a_run_that_trains_tells_of_its_collectives_and_stages(tmp_path):
    """As the page draws them, one step in so many."""
    (first, said), (second, _) = run_ranks(profiled_pipeline, 2, str(tmp_path / "run"), init=False)
    assert (first, second) == (0, 0)
    whole = sum(p.numel() for p in build(PIPED, sequence=16).parameters())
    assert f"{whole / 1e6:.2f} M parameters" in said, "not of the first stage alone"
    timelines = list(read_journal(tmp_path / "run", kind="timeline"))
    assert [entry["step"] for entry in timelines] == [2, 4]
    for entry in timelines:
        assert [lane["rank"] for lane in entry["lanes"]] == [0, 1]
        assert all(lane["spans"] for lane in entry["lanes"])
    told = list(read_journal(tmp_path / "run", kind="collectives"))
    assert [entry["step"] for entry in told] == [2, 4]
    assert sum(told[0]["seconds"].values()) > 0


def slow_rank(folder):
    """Train as one of two ranks, of which the second sleeps in its optimizer until it is named."""

    def sleep(*_):
        if os.environ["RANK"] == "0":
            return
        if any("slower than the median" in text for text in events_of(folder)):
            signal.raise_signal(signal.SIGTERM)
        time.sleep(0.1)

    hook = register_optimizer_step_pre_hook(sleep)
    try:
        words = ("--train.report_every", "1", "--run.grace_seconds", "200")
        return train(folder, "--train.steps", "100", *words)
    finally:
        hook.remove()


def events_of(folder):
    return [entry["text"] for entry in read_journal(folder, kind="event")]


def test_a_slow_rank_is_an_event_of_the_run(tmp_path):
    assert run_ranks(slow_rank, 2, str(tmp_path / "run"), init=False) == [143, 143]
    entries = list(read_journal(tmp_path / "run", kind="ranks"))
    reports = list(read_journal(tmp_path / "run", kind="step"))
    assert len(entries) == len(reports) - 1 >= 5, "one a report, told at the next"
    assert all(len(entry[key]) == 2 for entry in entries
               for key in ("own_seconds", "wait_seconds", "memory_bytes"))  # fmt: skip
    named = [text for text in events_of(tmp_path / "run") if "slower than the median" in text]
    assert len(named) == 1 and "rank 1 is" in named[0], named
