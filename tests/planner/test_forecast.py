from dataclasses import replace

import pytest

from stepladder.errors import PlanError
from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.planner import forecast
from stepladder.workload import find_facts

FACTS = find_facts("llama3-8b", 4096)
NODE = Cluster.parse("8 x H100-80GB")


def test_a_forecast_answers_the_four_questions() -> None:
    found = forecast(FACTS, Plan.parse("bf16 zero3 micro=2 batch=64 recompute=blocks"), NODE)
    assert found.fits and found.reasons == ()
    assert found.plan == "bf16 zero3 shard=8 batch=64 micro=2 accumulate=4 recompute=blocks"
    assert found.tokens_per_step == 64 * 4096
    assert found.mfu is not None and 0.3 < found.mfu < 0.6
    assert found.time and found.step_seconds and found.time.step_seconds in found.step_seconds
    assert found.cost_for(1e12).dollars and found.cost_for(1e12).kilowatt_hours


def test_what_does_not_fit_names_the_numbers_and_the_largest_owner() -> None:
    found = forecast(FACTS, Plan.parse("bf16 ddp micro=1"), NODE)
    assert not found.fits
    assert found.reasons[0].startswith("memory: needs ")
    assert found.reasons[0].endswith("Largest owner: optimizer, 59.8 GiB.")


def test_a_ceiling_is_a_limit() -> None:
    found = forecast(FACTS, Plan.parse("bf16 zero3 micro=1 memory=8GiB"), NODE)
    assert not found.fits and found.memory_limit_bytes == 8 * 2**30


def test_host_memory_that_is_too_small_is_a_reason() -> None:
    cluster = Cluster.parse("8 x H100-80GB, 64 GiB host")
    found = forecast(FACTS, Plan.parse("bf16 zero3 micro=1 offload=optimizer"), cluster)
    assert not found.fits and found.reasons[0] == "host memory: a node needs 120 GiB and has 64."


def test_host_memory_that_nobody_stated_is_said() -> None:
    found = forecast(FACTS, Plan.parse("bf16 zero3 micro=1 offload=optimizer"), NODE)
    assert found.fits
    assert found.reasons == ("host memory: a node needs 120 GiB; its size is not stated.",)


def test_an_unknown_speed_is_a_reason_and_no_number() -> None:
    found = forecast(find_facts("gpt-tiny"), Plan.parse("fp32 micro=1"), Cluster.parse("1 CPU"))
    assert found.time is None and found.mfu is None and found.memory.peak_bytes > 0
    assert found.reasons == ("time: no speed is known for CPU in fp32.",)
    assert found.fits, "memory of unknown size speaks against nothing"


def test_a_plan_for_another_number_of_devices_is_refused() -> None:
    with pytest.raises(PlanError, match="is for 4 ranks"):
        forecast(FACTS, Plan.parse("bf16 zero3 shard=4 micro=1"), NODE)


def test_a_device_filled_to_the_brim_is_warned_of() -> None:
    plan = Plan.parse("bf16 zero3 micro=1")
    brim = round(forecast(FACTS, plan, NODE).memory.peak_bytes * 1.02)
    found = forecast(FACTS, replace(plan, memory_bytes=brim), NODE)
    assert found.fits
    assert found.reasons[0].endswith("GiB to spare; an allocator this full may stall.")


def test_what_makes_a_plan_illegal_is_among_the_reasons() -> None:
    old = forecast(find_facts("gpt2"), Plan.parse("fp8 micro=1"), Cluster.parse("1 x A100-80GB"))
    assert any("fp8" in reason and "A100-80GB" in reason for reason in old.reasons)
    odd = forecast(find_facts("gpt2"), Plan.parse("bf16 tensor=8 micro=1"), NODE)
    assert any("cannot cut 12 attention heads" in reason for reason in odd.reasons)


def test_texts_will_do() -> None:
    found = forecast("llama3-8b", "bf16 zero3 micro=1 batch=8", "8 x H100-80GB")
    plan, cluster = Plan.parse("bf16 zero3 micro=1 batch=8"), Cluster.parse("8 x H100-80GB")
    assert found == forecast(find_facts("llama3-8b"), plan, cluster)
    with pytest.raises(PlanError, match="Did you mean 'llama3-8b'"):
        forecast("lama3-8b", "bf16", "1 H100")


def with_and_without_exact(words: str, cluster: str):
    """Forecasts of the same micro-batches with exact=ranks and without."""
    facts, here = find_facts("llama3.2-1b", 1024), Cluster.parse(cluster)
    plans = f"{words} batch=8 exact=ranks", f"{words} micro=1 batch=8"
    return [forecast(facts, Plan.parse(plan), here) for plan in plans]


def test_exact_ranks_is_forecast_with_the_sums_that_wait() -> None:
    exact, plain = with_and_without_exact("bf16", "1 x H100-80GB")  # 8 passes: three levels wait
    assert exact.plan == f"{plain.plan} exact=ranks:8"
    assert exact.memory.gradients == 4 * plain.memory.gradients
    exact, plain = with_and_without_exact("bf16 zero3", "4 x H100-80GB")  # two passes: one
    assert exact.memory.gradients == 2 * plain.memory.gradients


def test_exact_ranks_is_forecast_with_communication_that_nothing_hides() -> None:
    for words in ("bf16 ddp", "bf16 zero1", "bf16 zero3"):  # zero3 gathers twice the bytes
        exact, plain = with_and_without_exact(words, "4 x H100-80GB")
        assert exact.time.communication > 1.2 * plain.time.communication
    assert exact.memory.working > 1.9 * plain.memory.working
