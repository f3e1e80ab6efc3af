import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from stepladder.model import build
from stepladder.plan import BF16, FP32, BatchSplit, Plan
from stepladder.record import Calibration, Timing, calibration_path
from stepladder.train import climb, facts_for
from stepladder.train.tuning.auto_plan import (
    Known,
    best_of,
    can_compile,
    choose_plan,
    start_of,
)
from stepladder.train.tuning.planner_inputs import cluster_for
from stepladder.world import Place

ALONE = Place()
CPU = torch.device("cpu")
FLAT = Calibration(
    device="CPU",
    matrix_flops_per_second={"fp32": 1e11, "bf16": 1e11},
    matrix_edges={"fp32": 0.0, "bf16": 0.0},
    attention_flops_per_second={"fp32": 1e11, "bf16": 1e11},
    bandwidth_bytes_per_second=1e10,
    launch_seconds=1e-6,
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def keep(calibration: Calibration) -> None:
    path = calibration_path("CPU")
    path.parent.mkdir(exist_ok=True)
    calibration.save(path)


def auto(text="auto", **given):
    return choose_plan(text, "cpu", ALONE, **given)


def test_a_plan_that_was_asked_for_needs_no_reason():
    choice = auto("bf16 micro=4")
    assert choice.plan == Plan.parse("bf16 micro=4") and choice.because == ""


def test_without_a_batch_the_rule_stays_and_says_why():
    choice = auto(model=build("gpt-tiny", device="meta"))
    assert choice.plan == Plan(precision=FP32)
    assert choice.because.endswith("no batch was given to plan for")


def test_a_processor_nobody_measured_keeps_fp32_and_names_the_way_to_know():
    choice = auto(model=build("gpt-tiny", device="meta"), batch=8)
    assert choice.plan == Plan(precision=FP32)
    assert "no speed is known for CPU" in choice.because
    assert "'stepladder calibrate' measures it" in choice.because


def test_a_measured_processor_is_planned_for():
    keep(FLAT)
    choice = auto(model=build("gpt-tiny", device="meta"), batch=8)
    assert choice.plan.precision == FP32 and choice.plan.batch == BatchSplit(8, 8, 1)
    assert "by the measured speeds of CPU: forecast" in choice.because
    assert "tokens/s" in choice.because and "GiB" in choice.because


@pytest.mark.parametrize(("seconds", "precision"), [(0.5, BF16), (0.95, FP32), (2.0, FP32)])
def test_bf16_wins_on_a_processor_only_where_a_whole_step_was_faster(seconds, precision):
    timed = (Timing("step", "fp32", (4, 128), 1.0), Timing("step", "bf16", (4, 128), seconds))
    keep(replace(FLAT, timings=timed))
    assert auto(model=build("gpt-tiny", device="meta"), batch=8).plan.precision == precision


def test_fast_matmuls_alone_do_not_make_bf16_win():
    fast = {"fp32": 1e11, "bf16": 1e13}
    keep(replace(FLAT, matrix_flops_per_second=fast, attention_flops_per_second=fast))
    assert auto(model=build("gpt-tiny", device="meta"), batch=8).plan.precision == FP32


def test_any_batch_may_go_in_one_pass():
    known = Known(CPU, facts_for(build("gpt-tiny", device="meta")), cluster_for(CPU), FLAT, 7)
    plan, said = best_of(known, Plan())
    assert plan.batch == BatchSplit(7, 7, 1) and said.fits


def test_our_own_models_are_compiled_where_that_pays():
    facts = facts_for(build("gpt-tiny", device="meta"))
    known = Known(CPU, facts, cluster_for(CPU), FLAT, 8)
    assert not start_of(known, Plan()).compile
    assert start_of(replace(known, compiles=True), Plan()).compile
    assert start_of(known, Plan(compile=True)).compile
    assert not can_compile(CPU)


def test_compilation_that_was_asked_for_leaves_the_rest_open():
    keep(FLAT)
    choice = auto("auto compile=on", model=build("gpt-tiny", device="meta"), batch=8)
    assert choice.plan.compile and choice.plan.batch == BatchSplit(8, 8, 1)


def test_memory_decides_the_pass():
    small = replace(cluster_for(CPU), host_memory_bytes=100 * 2**20)
    known = Known(CPU, facts_for(build("gpt-tiny", device="meta")), small, FLAT, 64)
    plan, said = best_of(known, Plan())
    assert plan.batch.micro < 64 and said.memory.peak_bytes < 100 * 2**20


def test_a_sample_decides_the_micro_batch_but_not_the_batch():
    keep(FLAT)
    tokens = torch.zeros(6, 256, dtype=torch.long)
    choice = auto(model=build("gpt-tiny", device="meta"), sample=(tokens, tokens))
    assert choice.plan.batch == BatchSplit() and "measured speeds" in choice.because


@pytest.mark.parametrize("words", ["auto micro=2 batch=8", "auto recompute=blocks"])
def test_what_was_asked_for_is_kept(words):
    keep(FLAT)
    choice = auto(words, model=build("gpt-tiny", device="meta"), batch=8)
    assert choice.plan == Plan.parse(words.replace("auto", "fp32"))
    assert choice.because.endswith("the rest was asked for")


def test_several_ranks_hold_whole_copies():
    place = Place(rank=0, num_ranks=2, local_rank=0)
    choice = choose_plan("auto", "cpu", place, model=build("gpt-tiny", device="meta"), batch=8)
    assert choice.plan == Plan.parse("fp32 ddp") and "each of 2 ranks" in choice.because


def test_a_module_nobody_can_describe_still_runs():
    keep(FLAT)

    class Strange(nn.Module):
        @property
        def shape(self):
            raise RuntimeError("no shape today\nsecond line")

    choice = auto(model=Strange(), batch=8)
    assert choice.plan == Plan(precision=FP32)
    assert choice.because.endswith("nothing to add: no shape today")


def test_a_foreign_module_is_traced():
    keep(FLAT)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    batch = (torch.randn(4, 64), torch.zeros(4, dtype=torch.long))
    choice = auto(model=model, sample=batch)
    assert "measured speeds of CPU: forecast" in choice.because and "samples/s" in choice.because


def test_a_damaged_calibration_stops_no_run():
    calibration_path("CPU").parent.mkdir(exist_ok=True)
    calibration_path("CPU").write_text("{")
    choice = auto(model=build("gpt-tiny", device="meta"), batch=8)
    assert choice.plan == Plan(precision=FP32) and "cannot be read" in choice.because


def test_a_run_says_why_it_has_its_plan():
    keep(FLAT)
    tokens = torch.zeros(2, 16, dtype=torch.long)
    model = build("gpt-tiny", sequence=16)
    run = climb(model, loss="cross_entropy", sample=(tokens, tokens), device="cpu")
    assert "measured speeds of CPU" in run.because
    assert climb(model, loss="cross_entropy", plan="fp32", device="cpu").because == ""


@pytest.mark.soak
def test_choosing_takes_no_time():
    keep(FLAT)
    model = build("gpt-tiny", device="meta")
    auto(model=model, batch=8)
    began = time.process_time()
    auto(model=model, batch=8)
    assert time.process_time() - began < 1.0
