"""Each table: its rows, its JSON, its picture, its refusals."""

import json

import pytest

from stepladder.cli.main import main

TINY = ["gpt:layers=2,hidden=16,heads=2,vocab=256", "--sequence", "16", "--steps", "2"]


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
    ],
)
def test_a_mistake_is_one_line(capsys, words, said):
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_an_unknown_table_lists_the_known(capsys):
    assert main(["bench", "presicion"]) == 2
    assert "Did you mean 'precision'?" in capsys.readouterr().err
