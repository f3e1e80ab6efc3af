"""The tables about ranks that talk: rows, JSON, pictures, refusals, and the link that is kept."""

import argparse
import json
from dataclasses import replace

import pytest

import stepladder.bench.collectives
import stepladder.bench.ring_all_reduce
from stepladder.bench import CollectiveRow
from stepladder.bench.collectives import COLLECTIVES
from stepladder.bench.ring_all_reduce import RingRow
from stepladder.cli.commands.bench import configure
from stepladder.cli.main import main
from stepladder.cli.results.bench_tables.communication_tables import (
    asked,
    keep_link,
    sizes,
    with_odd,
)
from stepladder.errors import PlanError, WorldError
from stepladder.hardware import Cluster
from stepladder.planner.time.collective_time import network_of
from stepladder.record import Calibration, calibration_path, load_calibration

PNG = b"\x89PNG"


def bench(capsys, *words, code=0):
    assert main(["bench", *words, "--device", "cpu", "--steps", "2"]) == code
    return capsys.readouterr().out


@pytest.mark.soak
def test_collectives_have_rows_lines_and_a_picture(capsys, tmp_path):
    plot = tmp_path / "c.png"
    words = ("--largest", "16", "--json", "--plot", str(plot))
    shown = json.loads(bench(capsys, "collectives", *words))
    names = [line["collective"] for line in shown["lines"]]
    assert names == list(COLLECTIVES)
    assert len(shown["rows"]) == 3 * len(names)
    first = shown["rows"][0]
    assert (first["ways"], first["bytes"], first["axes"]) == (2, 1024, "all")
    assert first["bus_bytes_per_second"] == pytest.approx(1024 / first["seconds"])
    assert plot.read_bytes().startswith(PNG)


@pytest.fixture
def measured(monkeypatch):
    """A backend of known speed without point to point: a busy machine's times show no rate."""

    def measure(pool, use, layout, sizes, **settings):
        if use.collective == "send_receive":
            raise WorldError("device", "not here")
        return [CollectiveRow(use.collective, "all", 2, size, 1e-3 + size / 1e9) for size in sizes]

    monkeypatch.setattr(stepladder.bench.collectives, "measure_collective", measure)


def test_the_link_that_is_kept_is_what_forecasts_use(capsys, tmp_path, monkeypatch, measured):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calibration_path("CPU").parent.mkdir()
    Calibration(device="CPU", launch_seconds=7e-6).save(calibration_path("CPU"))
    link = json.loads(bench(capsys, "collectives", "--largest", "2048", "--json", "--keep"))["link"]
    kept = load_calibration("CPU")
    assert kept.launch_seconds == 7e-6, "what was known stays"
    assert kept.inside_bytes_per_second == link["bytes_per_second"] > 0
    network = network_of(Cluster.parse("2 x H100-80GB"), kept)
    assert network.inside_latency == link["latency_seconds"] > 0


def test_a_collective_this_backend_cannot_do_says_why_and_the_others_go_on(capsys, measured):
    shown = bench(capsys, "collectives", "--largest", "16")
    assert "send_receive: device: not here." in shown and shown.count("reduce_scatter") == 4
    plan = ("--plan", "pipeline=2", "--json")
    assert json.loads(bench(capsys, "collectives", *plan, code=1))["rows"] == []


def options_of(*words):
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(words)


def test_a_plan_limits_the_table_to_what_it_uses_and_says_how_many_ranks():
    plan, uses = asked(options_of("collectives", "--plan", "zero3 shard=-1"))
    assert plan.layout.shard == 2
    assert [use.collective for use in uses] == ["all_gather", "reduce_scatter"]
    assert asked(options_of("collectives", "--plan", "tensor=4"))[0].layout.num_ranks == 4
    wider = options_of("collectives", "--plan", "zero3 shard=-1", "--ranks", "3")
    assert asked(wider)[0].layout.shard == 3
    assert len(asked(options_of("collectives"))[1]) == len(COLLECTIVES)


def test_sizes_run_in_fourfolds_from_a_kibibyte_and_the_ring_adds_an_odd_one():
    whole = sizes(options_of("collectives"))
    assert whole[:2] == [2**10, 2**12] and whole[-1] == 2**26 and len(whole) == 9
    assert sizes(options_of("collectives", "--largest", "63")) == [2**10, 2**12, 2**14]
    assert with_odd(whole)[5:7] == [2**20, 2**20 + 12]
    assert with_odd([1024]) == [1024]


def test_the_ring_is_compared_counted_and_drawn(capsys, tmp_path):
    plot = tmp_path / "ring.png"
    rows = json.loads(bench(capsys, "ring", "--largest", "4", "--json", "--plot", str(plot)))
    assert [row["bytes"] for row in rows] == [2**10, 2**12]
    assert all(row["sent_bytes"] == row["formula_bytes"] == row["bytes"] for row in rows)
    assert all(row["same"] and row["exact"] for row in rows)
    assert plot.read_bytes().startswith(PNG)


ROW = RingRow(1024, 2, 1.0, 1.0, 1024, 1024, None, None, 0.0, exact=True, same=True)


@pytest.mark.parametrize(
    ("row", "code"), [(ROW, 0), (replace(ROW, exact=False), 1), (replace(ROW, same=False), 1)]
)
def test_a_ring_that_sends_other_bytes_or_ends_with_other_bits_fails(
    capsys, monkeypatch, row, code
):
    monkeypatch.setattr(
        stepladder.bench.ring_all_reduce, "measure_ring", lambda *args, **options: [row]
    )
    shown = bench(capsys, "ring", "--ranks", "1", "--largest", "1", code=code)
    assert "1 KiB" in shown and "unknown" in shown


def test_ways_of_data_parallel_are_compared(capsys, tmp_path):
    plot = tmp_path / "dp.png"
    model = "gpt:layers=1,hidden=16,heads=2,vocab=256"
    words = (model, "--batch", "4", "--sequence", "16", "--plot", str(plot))
    shown = bench(capsys, "dp", *words)
    assert "threads by hand, as nn.DataParallel does" in shown or "nn.DataParallel" in shown
    assert "DistributedDataParallel" in shown and plot.read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["collectives", "--ranks", "1"], "ranks: 1 rank has nobody to talk to. Use 2 or more."),
        (["collectives", "--plan", "fp32"], "'fp32' runs on one rank and sends nothing"),
        (["collectives", "--plan", "zero3 shard=4", "--ranks", "2"], "is for 4 ranks"),
        (["ring", "--plan", "fp32"], "--plan: the table 'ring' does not read it."),
        (["precision", "--ranks", "2"], "--ranks: the table 'precision' does not read it."),
        (["dp", "--batch", "3"], "3 samples do not divide over 2 ranks"),
    ],
)
def test_a_mistake_is_one_line(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_link_that_was_not_found_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(PlanError, match="what was measured does not tell latency from rate"):
        keep_link(None, options_of("collectives", "--keep"))
    assert load_calibration("CPU") is None
