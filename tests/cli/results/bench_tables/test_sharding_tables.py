"""The tables about sharing the work: rows, JSON, pictures, verdicts."""

import json
from dataclasses import replace

import pytest

from stepladder.bench.zero import ZeroRow, strategies
from stepladder.cli.main import main
from stepladder.record import Memory

TINY = ["gpt:layers=2,hidden=16,heads=2,vocab=256", "--sequence", "16", "--batch", "4",
        "--device", "cpu"]  # fmt: skip


def bench(capsys, name, *words, code=0):
    assert main(["bench", name, *TINY, *words]) == code
    return capsys.readouterr().out


@pytest.mark.soak
def test_each_stage_of_zero_holds_what_theory_says(capsys, tmp_path):
    plot = tmp_path / "z.png"
    rows = json.loads(bench(capsys, "zero", "--steps", "1", "--json", "--plot", str(plot)))
    held = {row["name"]: row["measured"] for row in rows}
    assert all(row["error"] <= 0.02 for row in rows)
    assert held["zero1"]["optimizer"] * 2 == held["ddp"]["optimizer"]
    assert held["zero2"]["gradients"] * 2 == held["zero1"]["gradients"]
    assert held["zero3"]["parameters"] * 2 == held["ddp"]["parameters"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    check_traffic({row["name"]: row for row in rows})


def check_traffic(rows):
    """A gather has each of two ranks send half of the parameters; gloo reduces, also into slices,
    by what two gathers send. A block that stays gathered, as the last always does, comes once."""
    half = rows["ddp"]["measured"]["parameters"] / 2
    for name, times in (("ddp", 2), ("zero1", 3), ("zero2", 3), ("zero3 gathered=4", 3)):
        # Barriers, norms and headers come on top.
        assert times * half <= rows[name]["sent_bytes"] < times * half + 20_000, name
    assert 3 * half < rows["zero3"]["sent_bytes"] < 4 * half
    peaks = [rows[f"zero3{words}"]["peak_bytes"] for words in (" prefetch=0", "", " gathered=4")]
    assert peaks == sorted(peaks)
    assert all(row["samples_per_second"] * row["step_ms"] == pytest.approx(8000)
               for row in rows.values())  # fmt: skip


def test_several_groups_of_ranks_are_a_strategy_of_their_own():
    assert strategies(2)[0] == ("ddp", "ddp replicate=2") and len(strategies(2)) == 7
    assert strategies(4)[-1] == ("hsdp", "hsdp shard=2 replicate=2") and len(strategies(3)) == 7


def test_state_that_is_not_what_theory_says_is_an_error():
    row = ZeroRow("ddp", "fp32", 2, Memory(100, 0, 100, 200), Memory(100, 0, 100, 200), 0)
    assert row.error == 0
    assert replace(row, measured=Memory(100, 0, 103, 200)).error == pytest.approx(0.03)
    assert replace(row, theory=Memory(100, 0, 0, 200)).error == 1.0


def test_accumulation_learns_one_curve(capsys, tmp_path):
    plot = tmp_path / "a.png"
    words = ("--steps", "3", "--json", "--plot", str(plot))
    rows = json.loads(bench(capsys, "accumulation", *words))
    assert [row["micro_batches"] for row in rows] == [1, 2, 4]
    assert all(row["difference"] < 1e-5 and len(row["losses"]) == 3 for row in rows)
    kept = [row["activation_bytes"] for row in rows]
    assert kept[0] > kept[1] > kept[2]
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.soak
def test_strong_and_weak_scaling_are_reported(capsys, tmp_path):
    plot = tmp_path / "s.png"
    words = ("--steps", "1", "--json", "--plot", str(plot))
    rows = json.loads(bench(capsys, "scaling", *words))
    assert [(row["kind"], row["ranks"], row["batch"]) for row in rows] == [
        ("strong", 1, 4), ("strong", 2, 4), ("weak", 1, 4), ("weak", 2, 8),
    ]  # fmt: skip
    assert all(row["efficiency"] == 1.0 for row in rows if row["ranks"] == 1)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_batch_that_does_not_divide_over_the_ranks_is_refused(capsys):
    assert main(["bench", "scaling", "--batch", "3", "--device", "cpu"]) == 2
    assert "3 samples do not divide over 1, 2 ranks" in capsys.readouterr().err
