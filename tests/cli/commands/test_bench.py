"""Each table: its rows, its JSON, its picture, its refusals."""

import json
from contextlib import nullcontext

import pytest

from stepladder.bench.device import matmuls, operations, roofline
from stepladder.cli.commands import bench as command
from stepladder.cli.main import main
from stepladder.cli.results.bench_tables import matmul_table

TINY = ["gpt:layers=2,hidden=16,heads=2,vocab=256", "--sequence", "16", "--steps", "2"]


@pytest.fixture
def small_operations(monkeypatch):
    """A roofline of operations that take no time; what is asserted of it is its form."""
    for function in (roofline.time_operations, roofline.place_operations):
        monkeypatch.setattr(function, "__defaults__", (0.0,))
    for name, size in (
        ("SQUARES", (16,)), ("STREAM", 1024), ("COPIED_BYTES", 1024), ("ROWS", (8, 16)),
        ("ATTENTION", (1, 2, 16, 8)), ("PARAMETERS", 1024),
    ):  # fmt: skip
        monkeypatch.setitem(getattr(operations, name), "cpu", size)


def bench(capsys, *words, code=0):
    assert main(["bench", *words, "--device", "cpu"]) == code
    return capsys.readouterr().out


def test_precisions_are_compared_and_what_this_device_cannot_do_says_why(capsys, tmp_path):
    plot = tmp_path / "precision.png"
    rows = json.loads(
        bench(capsys, "precision", *TINY, "--batch", "2", "--json", "--plot", str(plot))
    )
    by_name = {row["name"]: row for row in rows}
    assert by_name["fp32"]["step_ms"] > 0 and by_name["bf16"]["loss"] > 0
    assert "tf32 needs matrix units" in by_name["tf32"]["problem"]
    assert by_name["tf32"]["step_ms"] is None
    assert (
        by_name["bf16-pure"]["memory"]["parameters"] * 2 == by_name["fp32"]["memory"]["parameters"]
    )
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_one_batch_size_is_marked_best(capsys):
    shown = bench(capsys, "batch", *TINY, "--batch", "4")
    assert shown.count("best") == 1
    rows = json.loads(bench(capsys, "batch", *TINY, "--batch", "4", "--json"))
    assert [row["name"] for row in rows] == ["1", "2", "4"]
    peaks = [row["memory"]["activations"] for row in rows]
    assert peaks == sorted(peaks) and peaks[0] < peaks[-1]


def test_recomputation_keeps_less_and_changes_no_loss(capsys):
    rows = json.loads(bench(capsys, "recompute", *TINY, "--batch", "2", "--json"))
    kept = {row["name"]: row["memory"]["activations"] for row in rows}
    assert kept["blocks"] < kept["selective"] < kept["none"]
    assert len({row["loss"] for row in rows}) == 1


def test_loader_settings_are_compared(capsys):
    rows = json.loads(bench(capsys, "data", "--batch", "4", "--sequence", "16", "--json"))
    assert {row["workers"] for row in rows} >= {"0", "1", "auto"}
    assert all(row["samples_per_second"] > 0 for row in rows)


def test_kernels_without_a_gpu_are_refused_in_one_line(capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert main(["bench", "kernels"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("device:") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["precision", "gtp2"], "Did you mean 'gpt2'?"),
        (["recompute", "--plan", "bf17"], "'bf17' is not a word of a plan"),
        *(
            ([table, "--ranks", "1"], "ranks: 1 rank has nobody to talk to. Use 2 or more.")
            for table in ("zero", "pipeline", "walls", "compression-curves")
        ),
        *(
            ([table, "--steps", "2"], f"--steps: the table '{table}' does not read it. Leave it")
            for table in ("data", "kernels", "roofline", "devices", "matmul")
        ),
        *(
            ([table, "--plot", "/"], "plot: / cannot be written (it names no file)")
            for table in ("precision", "zero", "walls", "roofline")
        ),
        (["zero", "--plot", "/dev/null/a.png"], "plot: /dev/null/a.png cannot be written (/dev/nu"),
        (["zero", "--plot", "a.xyz"], "plot: a.xyz cannot be written ('.xyz' is no kind of pic"),
        (
            ["pipeline", "--ranks", "3", "--batch", "8"],
            "batch: 8 samples do not divide over 3 ranks. Nearest that do: 6 or 9.",
        ),
        (["compression", "--ranks", "3"], "ranks: 3 ranks do not fit a link, which has one at ea"),
        (["compression", "--device", "cuda"], "'compression' runs on the CPU, not on 'cuda'"),
        (["precision", "--seeds", "2"], "--seeds: the table 'precision' does not read it"),
    ],
)
def test_a_mistake_is_one_line(capsys, words, said):
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize("table", ["zero", "dp", "scaling", "compression", "walls", "pipeline"])
def test_a_model_may_stand_behind_the_ranks(table, monkeypatch):
    seen = []
    monkeypatch.setitem(command.TABLES, table, lambda options: seen.append(options) or 0)
    for words in (["--ranks", "2", "gpt-tiny"], ["gpt-tiny", "--ranks", "2"]):
        assert main(["bench", table, *words]) == 0
    assert main(["bench", "--ranks", "2", table, "gpt-tiny"]) == 0
    assert [(one.model, one.ranks, one.name) for one in seen] == [("gpt-tiny", 2, table)] * 3


def test_three_stages_are_given_a_batch_that_divides(monkeypatch, capsys):
    asked = []

    def stop(pool, cases, *, steps):
        asked.extend(case.micros for case in cases)
        raise KeyboardInterrupt

    monkeypatch.setattr("stepladder.bench.pipeline_schedules.measure_schedules", stop)
    monkeypatch.setattr("stepladder.launch.Ranks", lambda ranks: nullcontext())
    assert main(["bench", "pipeline", "--ranks", "3"]) == 130
    assert {*asked} == {9}


def test_an_unknown_table_lists_the_known(capsys):
    assert main(["bench", "presicion"]) == 2
    assert "Did you mean 'precision'?" in capsys.readouterr().err


LEARNER = ["gpt:layers=1,hidden=16,heads=2,vocab=256", "--sequence", "16", "--steps", "2",
           "--seeds", "1"]  # fmt: skip


def test_rules_for_the_learning_rate_are_compared_with_the_base_batch(capsys, tmp_path):
    plot = tmp_path / "rates.png"
    words = (*LEARNER, "--batch", "1", "--times", "4")
    rows = json.loads(bench(capsys, "learning-rate", *words, "--json", "--plot", str(plot)))
    rules = [row["case"]["rule"] for row in rows]
    assert rules == 2 * ["base", "none", "none", "linear", "linear", "sqrt", "sqrt"]
    assert len(rows) == 14 and len(rows[0]["losses"]) == 8 and len(rows[1]["losses"]) == 2
    assert plot.read_bytes().startswith(b"\x89PNG")
    shown = bench(capsys, "learning-rate", *words, "--optimizer", "sgd lr=1e30", code=1)
    assert "sgd lr=1e30: too high a rate to compare; lower it with --optimizer." in shown
    assert "diverged in step" in shown
    shown = bench(capsys, "learning-rate", *words, "--optimizer", "sgd lr=0.01")
    assert "ends lowest" in shown and "lowest in 1 of 1 seed." in shown


def test_the_roofline_is_measured_and_drawn(capsys, tmp_path, small_operations):
    plot = tmp_path / "roof.png"
    found = json.loads(bench(capsys, "roofline", "--json", "--plot", str(plot)))
    assert found["roofs"]["bytes_per_second"] > 0 and found["roofs"]["peaks"]["fp32"] > 0
    assert {row["bound"] for row in found["operations"]} <= {"compute", "memory"}
    assert plot.read_bytes().startswith(b"\x89PNG")
    shown = bench(capsys, "roofline")
    assert "matmul fp32" in shown and "AdamW update" in shown and "Furthest from its roof" in shown


def test_a_product_is_timed_in_several_ways_and_drawn(
    capsys, tmp_path, small_operations, monkeypatch
):
    monkeypatch.setattr(matmul_table, "BUDGET_SECONDS", 0.0)
    monkeypatch.setattr(matmuls, "LOOPED", 8)
    plot = tmp_path / "matmul.png"
    found = json.loads(bench(capsys, "matmul", "--json", "--plot", str(plot)))
    names = [row["name"] for row in found["matmuls"]]
    assert names == ["three loops in Python", "one loop, torch.mv inside", "torch.mm",
                     "torch.mm, fastest size"]  # fmt: skip
    assert found["matmuls"][0]["times_first"] == 1
    assert found["matmuls"][-1]["share_of_peak"] == 1
    assert [row["name"] for row in found["copies"]] == ["host memory to itself"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    shown = bench(capsys, "matmul")
    assert "three loops in Python" in shown and "times as fast as three loops" in shown
    assert "occupancy" not in shown, "no program of ours runs on a processor"


@pytest.mark.soak
def test_compressed_trainings_are_drawn_beside_the_plain_one(capsys, tmp_path):
    plot = tmp_path / "curves.png"
    words = (*LEARNER, "--batch", "2", "--seeds", "2")
    rows = json.loads(bench(capsys, "compression-curves", *words, "--json", "--plot", str(plot)))
    assert [row["case"]["compress"] for row in rows] == 2 * [
        "none", "bf16", "powersgd:4", "powersgd:4", "powersgd:1", "powersgd:1",
    ]  # fmt: skip
    assert [row["seed"] for row in rows] == [0] * 6 + [1] * 6
    assert all(len(row["losses"]) == 2 for row in rows)
    assert plot.read_bytes().startswith(b"\x89PNG")
    shown = bench(capsys, "compression-curves", *words, "--optimizer", "sgd lr=0.1")
    assert "times smaller" in shown and "powersgd:1: without error feedback" in shown
