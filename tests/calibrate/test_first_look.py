"""The first look at a machine: taken once, kept, said in a line, and never in a test by itself."""

import json
import math
from dataclasses import replace

import pytest
import torch

import stepladder as sl
from stepladder.calibrate import calibrate, first_look, speeds_here
from stepladder.calibrate.first_look import TRAINING, first_probes
from stepladder.calibrate.fit_rates import kernel_seconds, matmul_rate
from stepladder.calibrate.probe import Probe
from stepladder.cli.main import main
from stepladder.hardware import Cluster, find_device, unknown_device
from stepladder.planner import forecast, search
from stepladder.record import Calibration, Timing, calibration_path, load_calibration
from stepladder.train.tuning.planner_inputs import speeds_for
from stepladder.world import Place

CPU = torch.device("cpu")
FOUND = Calibration(
    device="CPU", matrix_flops_per_second={"fp32": 5e10}, bandwidth_bytes_per_second=1e10
)


@pytest.fixture
def first_time(monkeypatch, tmp_path):
    """A machine that nobody has measured; measuring it takes no time here. Counts how often."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("STEPLADDER_PROBE")
    monkeypatch.setattr(first_look, "MEASURED", {})
    taken = []

    def measured(device, seconds, *, probes):
        torch.rand(3)
        taken.append(probes)
        return FOUND

    monkeypatch.setattr(first_look, "calibrate", measured)
    monkeypatch.setattr(first_look, "load_and_cores", lambda: (0.5, 2))
    return taken


def test_it_is_taken_once_kept_and_said_in_one_line(first_time, capsys, monkeypatch, tmp_path):
    before = torch.get_rng_state()
    assert speeds_here(CPU) == FOUND == load_calibration("CPU")
    assert torch.equal(torch.get_rng_state(), before)
    assert capsys.readouterr().err == (
        f"Measuring CPU for the first time, at most 10 s, kept in {tmp_path / 'cache/stepladder'}; "
        "STEPLADDER_PROBE=off leaves it out.\n"
    )
    monkeypatch.setattr(first_look, "MEASURED", {})  # as in another process
    assert speeds_here(CPU) == FOUND and len(first_time) == 1
    assert capsys.readouterr().err == ""


def test_without_a_cache_that_can_be_written_it_serves_this_process(first_time, capsys, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert speeds_here(CPU) == speeds_here(CPU) == FOUND and len(first_time) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"not kept, as {tmp_path / 'cache/stepladder'} cannot be written" in line
    assert not calibration_path("CPU").exists()


def test_one_taken_on_a_busy_machine_serves_this_process_and_is_not_kept(
    first_time, capsys, monkeypatch
):
    monkeypatch.setattr(first_look, "load_and_cores", lambda: (7.25, 2))
    assert speeds_here(CPU) == speeds_here(CPU) == FOUND and len(first_time) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "not kept, as the machine is busy (load 7.2 on 2 cores): once more next time" in line
    assert not calibration_path("CPU").exists()
    monkeypatch.setattr(first_look, "MEASURED", {})  # next time, and the machine is quiet
    monkeypatch.setattr(first_look, "load_and_cores", lambda: (2.0, 2))
    assert speeds_here(CPU) == load_calibration("CPU") == FOUND and len(first_time) == 2


def test_one_whose_own_repeats_disagree_is_not_kept(first_time, capsys, monkeypatch):
    seconds = iter([1.0, 1.3, 1.0, 1.5])

    def measured(device, limit, *, probes):
        return replace(FOUND, timings=(Timing("product", "fp32", (8, 8, 8), next(seconds)),))

    monkeypatch.setattr(first_look, "calibrate", measured)
    assert speeds_here(CPU) is not None and load_calibration("CPU") is not None
    monkeypatch.setattr(first_look, "MEASURED", {})
    calibration_path("CPU").unlink()
    capsys.readouterr()
    assert speeds_here(CPU) is not None and load_calibration("CPU") is None
    said = capsys.readouterr().err.splitlines()[1]
    assert said == (
        "Not kept: the same matrix product took 1.5 times as long a few seconds apart, so the "
        "machine is busy. It is measured again next time."
    )


def test_one_beside_which_other_programs_fill_the_cores_is_not_kept(
    first_time, capsys, monkeypatch
):
    monkeypatch.setattr(first_look.ProcessorTime, "others_since", lambda began: "others worked")
    assert speeds_here(CPU) == FOUND and load_calibration("CPU") is None
    said = capsys.readouterr().err.splitlines()[1]
    assert said == "Not kept: others worked. It is measured again next time."


def test_a_card_that_reaches_little_of_its_datasheet_is_in_use_by_others():
    busy = Calibration("H200", bandwidth_bytes_per_second=8e10)
    assert first_look.slowness(busy) == (
        "H200 copied at 80 GB/s and its datasheet says 4,800, so others are using it"
    )
    free = Calibration("H200", bandwidth_bytes_per_second=4.3e12)
    assert first_look.slowness(free) == first_look.slowness(FOUND) == ""


def test_a_start_of_a_kernel_that_takes_milliseconds_is_somebody_elses_work():
    rows = [Timing("stream", "bf16", (2**24,), 0.02), Timing("stream", "bf16", (2**28,), 0.05)]
    assert kernel_seconds(rows) is None
    quick = [Timing("stream", "bf16", (2**24,), 3e-5), Timing("stream", "bf16", (2**28,), 4e-4)]
    assert kernel_seconds(quick) == pytest.approx(3e-5 - 4e-4 / 16)


def test_ranks_on_one_processor_have_even_shares_of_what_was_measured(first_time):
    both = speeds_here(CPU, ranks=2)
    assert both.matrix_flops_per_second == {"fp32": 2.5e10}
    assert both.bandwidth_bytes_per_second == 5e9 and load_calibration("CPU") == FOUND
    words = {"plan": "fp32 ddp micro=4", "batch": 8}
    alone = sl.plan("gpt-tiny", "here", plan="fp32 micro=8", batch=8).forecast
    shared = sl.plan("gpt-tiny", "here x 2", **words).forecast
    halves = shared.time.matrix / alone.time.matrix
    assert halves == pytest.approx(1.0, rel=0.05)  # half of the rows on half of the processor


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no"])
def test_it_is_left_out_where_that_is_asked_for(first_time, capsys, monkeypatch, word):
    monkeypatch.setenv("STEPLADDER_PROBE", word)
    assert speeds_here(CPU) is None and not first_time
    assert capsys.readouterr().err == ""


def test_ranks_that_share_a_processor_do_not_measure_it(first_time, monkeypatch):
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert speeds_here(CPU) is None and not first_time
    assert speeds_for(CPU, Place(rank=1, num_ranks=2, local_rank=1, local_ranks=2)) is None


def test_the_rank_that_others_wait_for_measures_with_all_cores(first_time, monkeypatch):
    place = Place(rank=0, num_ranks=2, local_rank=0, local_ranks=2)
    monkeypatch.setattr(first_look.Place, "from_environment", lambda: place)
    monkeypatch.setattr(first_look.psutil, "cpu_count", lambda logical: 3)
    threads, measured = [], first_look.calibrate

    def watched(*given, **named):
        threads.append(torch.get_num_threads())
        return measured(*given, **named)

    monkeypatch.setattr(first_look, "calibrate", watched)
    before = torch.get_num_threads()
    half = speeds_for(CPU, place)
    assert half.matrix_flops_per_second == {"fp32": 2.5e10} and load_calibration("CPU") == FOUND
    assert threads == [max(3, before)] and torch.get_num_threads() == before
    assert not any(probe.kind in TRAINING for probe in first_time[0])


def test_what_a_device_cannot_do_is_not_kept(first_time, monkeypatch):
    monkeypatch.setattr(first_look, "calibrate", lambda *given, **named: Calibration(device="CPU"))
    assert speeds_here(CPU) is None and load_calibration("CPU") is None


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_most_telling_probes_come_first_and_none_is_large(kind):
    probes = list(first_probes(torch.device(kind)))
    assert len(probes) == len(set(probes)) < 120
    assert [probe.kind for probe in probes[:3]] == ["stream", "stream", "product"]
    assert all(math.prod(p.shape) <= 2**26 for p in probes if p.kind in ("stream", "update"))
    assert {"attention", "update", "launch", "norm", "loss"} <= {probe.kind for probe in probes}
    assert not {"compiled", "blocks", "fp8"} & {probe.compute for probe in probes}
    alone = list(first_probes(torch.device(kind), training=False))
    assert not set(TRAINING) & {probe.kind for probe in alone}
    assert set(alone) == {probe for probe in probes if probe.kind not in TRAINING}


def test_only_what_is_asked_for_is_timed():
    found = calibrate(CPU, 1.0, probes=[Probe("product", "fp32", (64, 64, 64))])
    products = {timing.shape for timing in found.timings if timing.compute == "fp32"}
    assert products == {(64, 64, 64)} and found.matrix_flops_per_second["fp32"] > 0
    assert found.bandwidth_bytes_per_second is None


def test_a_rate_is_positive_where_starting_a_kernel_seems_to_take_longer_than_the_product():
    rate, edges = matmul_rate([Timing("product", "bf16", (128, 128, 128), 1e-3)], 1e10, 0.1)
    assert rate > 0 and edges >= 0


def test_a_plan_for_this_machine_knows_its_time(first_time, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ["plan", "gpt-tiny", "--on", "here", "--batch", "8", "--plan", "fp32 micro=8"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "Measuring CPU" in said.err and "Speeds of CPU as measured: " in said.out
    assert "time    " in said.out and "MFU unknown" not in said.out
    assert main([*words, "--json"]) == 0
    told = capsys.readouterr()
    assert told.err == "" and json.loads(told.out)["mfu"] > 0
    result = sl.plan("gpt-tiny", "here", plan="fp32 micro=8", batch=8)
    assert result.forecast.time is not None and len(first_time) == 1
    assert main([*words, "--calibration", "none"]) == 0
    assert "no speed is known for CPU" in capsys.readouterr().out
    dark = sl.plan("gpt-tiny", "here", plan="fp32 micro=8", batch=8, calibration="none")
    assert dark.forecast.time is None


def test_a_plan_that_is_chosen_is_chosen_by_what_was_measured(first_time):
    model, rows = torch.nn.Linear(8, 4), torch.randn(16, 8)
    run = sl.climb(model, loss="squared_error", plan="auto", sample=(rows, rows[:, :4]))
    assert "by the measured speeds of CPU" in run.because and len(first_time) == 1
    sl.climb(torch.nn.Linear(8, 4), loss="squared_error", plan="fp32")  # needs no forecast
    assert len(first_time) == 1


def test_a_card_that_nobody_lists_is_planned_by_what_was_measured():
    card = unknown_device("NVIDIA New", "NVIDIA", 2**35, find_device("L4").board)
    cluster = Cluster(card, 1, 1, card.link, card.network)
    rates = {"fp32": 2e13, "tf32": 8e13, "bf16": 2e14}
    found = Calibration("NVIDIA New", rates, bandwidth_bytes_per_second=1e12)
    best = search("gpt2", cluster, batch=8, calibration=found).forecasts[0]
    assert best.plan.startswith("bf16 ") and best.mfu is not None and best.time is not None
    assert forecast("gpt2", "bf16 micro=8", cluster).time is None
