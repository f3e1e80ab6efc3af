"""The tables of walls and of equal devices: what they say of given rows, and whole runs."""

import json

import pytest

from stepladder.bench.counted_plans import CountedPlan
from stepladder.bench.walls import CountedRow, TimedRow
from stepladder.cli.main import main
from stepladder.cli.results.bench_tables.pipeline_tables import show_equal
from stepladder.cli.results.bench_tables.wall_tables import (
    conclusion,
    draw_walls,
    show_communication,
    show_memory,
)
from stepladder.cli.results.plots import store
from stepladder.record import Memory

MIB = 2**20
TINY = ["gpt:layers=2,hidden=16,heads=2,vocab=256", "--sequence", "8", "--batch", "8",
        "--steps", "1", "--json"]  # fmt: skip


def row(name, mib, kib, samples=8, seconds=None):
    held = CountedPlan(f"plan of {name}", samples, Memory(mib * MIB), kib * 1024, seconds)
    return CountedRow(("memory", "communication"), name, held)


ROWS = [row("plain", 30, 800), row("sharding", 15, 1200), row("PowerSGD", 33, 40)]
TIMED = [TimedRow(1, 2.0, 1.0), TimedRow(2, 1.25, 1.6)]


def test_what_is_within_the_budget_passes_and_shares_are_of_the_plain_plan(capsys):
    show_memory("here", ROWS, 20 * MIB)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["sharding", "plan", "of", "sharding", "15", "50.0%", "passes"] in lines
    assert ["plain", "plan", "of", "plain", "30", "100.0%", "needs", "more"] in lines


def test_bytes_are_compared_by_the_sample(capsys):
    show_communication("here", [ROWS[0], row("larger batch", 30, 800, samples=32)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["larger", "batch", "plan", "of", "larger", "batch", "800", "25", "0.25"] in lines


def test_the_conclusion_names_what_passes_and_what_sends_least():
    said = conclusion(["sharding"], TIMED, ROWS)
    assert said.startswith("Within the budget: sharding.\n2 ranks are 1.60 times as fast as one.")
    assert "PowerSGD sends 20 times fewer bytes a sample." in said
    assert conclusion([], TIMED, ROWS).startswith("Within the budget: nothing.")


def test_the_walls_are_drawn(tmp_path):
    path = store(draw_walls(ROWS, TIMED, ROWS, 20 * MIB), tmp_path / "walls.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_equal_devices_are_compared_with_ddp(capsys):
    named = {"pipeline, 1F1B": row("stages", 10, 100, seconds=3.0).counted,
             "DDP": row("copies", 20, 400, seconds=2.0).counted}  # fmt: skip
    show_equal("here", named)
    shown = capsys.readouterr().out
    (line,) = [line.split() for line in shown.splitlines() if "plan of stages" in line]
    assert line[-5:] == ["10", "0.50", "100", "0.25", "1.50"]


def test_a_batch_that_does_not_divide_is_refused_before_anything_runs(capsys):
    assert main(["bench", "walls", "--batch", "12"]) == 2
    assert "12 samples do not divide over 2 ranks in 4" in capsys.readouterr().err


@pytest.mark.soak
def test_walls_are_met_and_passed_on_two_ranks(capsys, tmp_path):
    plot = tmp_path / "w.png"
    assert main(["bench", "walls", *TINY, "--plot", str(plot)]) in (0, 1)
    told = json.loads(capsys.readouterr().out)
    names = [row["name"] for row in told["counted"]]
    sent = {row["name"]: row["sent_per_sample"] for row in told["counted"]}
    assert names[0] == "plain" and sent["larger batch, accumulated"] < sent["plain"] / 3
    assert sent["16-bit gradients"] < 0.55 * sent["plain"]
    assert [row["ranks"] for row in told["timed"]] == [1, 2]
    assert {row["wall"] for row in told["forecasts"]} == {"memory", "compute", "communication"}
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.soak
def test_a_pipeline_is_timed_and_counted_beside_data_parallelism(capsys):
    assert main(["bench", "pipeline", *TINY, "--ranks", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["case"]["schedule"] for row in told["schedules"]} >= {"gpipe", "1f1b"}
    held = {name: row["memory"]["parameters"] for name, row in told["equal_devices"].items()}
    assert list(held) == ["pipeline, 1F1B", "DDP", "ZeRO 3"]
    assert held["ZeRO 3"] < held["pipeline, 1F1B"] < held["DDP"]
