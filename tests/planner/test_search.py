"""The search looks at everything, keeps what fits, ranks by speed and says why the rest lost."""

import subprocess
import sys
from dataclasses import replace
from time import thread_time

import pytest

from stepladder.errors import PlanError
from stepladder.hardware import Cluster
from stepladder.plan import BF16, Plan
from stepladder.plan.precision import FP8
from stepladder.planner import forecast, plan_problems, search
from stepladder.planner.candidates import micro_batches, plan_skeletons
from stepladder.planner.explain import explain, family_of
from stepladder.planner.forecast import MARGIN
from stepladder.planner.pipeline_stages import split_stages
from stepladder.planner.search import default_batch, default_precision
from stepladder.workload import find_facts

FACTS = find_facts("llama3-8b", 4096)
NODE = Cluster.parse("8 x H100-80GB")
CHOICES = search(FACTS, NODE, batch=64)


def test_every_ranked_plan_is_legal_and_fits_with_room_to_spare() -> None:
    for choice in CHOICES.ranked:
        assert plan_problems(FACTS, choice.plan, NODE) == []
        found = forecast(FACTS, choice.plan, NODE)
        assert found.fits and found.memory.peak_bytes == choice.peak_bytes
        assert found.memory.peak_bytes <= MARGIN * (found.memory_limit_bytes or 0)


def test_plans_are_ranked_by_their_forecast_time() -> None:
    seconds = [choice.seconds for choice in CHOICES.ranked]
    assert seconds == sorted(seconds)
    times = [found.time.step_seconds for found in CHOICES.forecasts if found.time]
    assert times == pytest.approx(seconds[: len(times)])


def test_leaving_out_early_loses_nothing() -> None:
    """Every rejected plan was illegal, does not fit, or is beaten by one that was kept."""
    best = CHOICES.best.seconds
    for rejected in CHOICES.rejected:
        if plan_problems(FACTS, rejected.plan, NODE):
            continue
        found = forecast(FACTS, rejected.plan, NODE)
        tight = found.memory.peak_bytes > MARGIN * (found.memory_limit_bytes or 0)
        assert tight or (found.time and found.time.step_seconds >= best), rejected


def test_every_rejected_plan_has_a_reason() -> None:
    assert CHOICES.rejected and all(rejected.reason for rejected in CHOICES.rejected)
    words = " ".join(rejected.reason for rejected in CHOICES.rejected)
    assert "memory: needs" in words and "recomputes what fits" in words


def test_all_plans_share_the_batch_that_was_asked_for() -> None:
    assert {choice.plan.batch.sequences for choice in CHOICES.ranked} == {64}
    assert {choice.plan.layout.num_ranks for choice in CHOICES.ranked} == {8}


def test_frames_multiply_to_the_devices() -> None:
    every = list(plan_skeletons(FACTS, Cluster.parse("3 nodes x 8 H100-80GB")))
    assert {frame.layout.num_ranks for frame in every} == {24}
    assert any(frame.layout.pipeline == 3 for frame in every)
    assert len(set(every)) == len(every)


def test_copies_of_sliced_nodes_are_looked_at() -> None:
    every = plan_skeletons(FACTS, Cluster.parse("2 nodes x 8 H100-80GB"))
    assert any((f.layout.replicate, f.layout.shard, f.zero) == (2, 8, 3) for f in every)


def test_long_sequences_may_be_sliced() -> None:
    long = list(plan_skeletons(find_facts("llama3-8b", 131072), NODE))
    assert any(frame.layout.context == 8 for frame in long)
    assert all(frame.layout.context == 1 for frame in plan_skeletons(FACTS, NODE))


def test_a_model_that_cannot_be_cut_is_not_cut() -> None:
    assert all(frame.layout.tensor == 1 for frame in plan_skeletons(find_facts("resnet50"), NODE))


def test_a_module_without_blocks_is_planned_for() -> None:
    whole = find_facts("resnet50")
    plain = replace(whole, parts=(whole.entry, whole.exit))
    found = search(plain, NODE, batch=64)
    assert found.best.plan.layout.pipeline == 1 and found.forecasts[0].time


def test_micro_batches_cut_the_share_evenly() -> None:
    assert micro_batches(96, 8) == [1, 2, 4]
    assert micro_batches(8, 8) == [1] and micro_batches(9, 8) == [] and micro_batches(4, 8) == []


def test_a_batch_that_divides_nothing_is_the_reason() -> None:
    found = search(FACTS, NODE, batch=7)
    reasons = {rejected.reason for rejected in found.rejected}
    assert "a batch of 7 does not divide by 8 data ranks" in reasons


def test_the_start_gives_what_is_not_searched() -> None:
    found = search(FACTS, NODE, batch=64, start=Plan(precision=FP8, compile=True))
    assert found.best.plan.precision == FP8 and found.best.seconds < CHOICES.best.seconds


def test_the_usual_precision_is_what_the_device_can() -> None:
    names = {"H100-80GB": "bf16", "V100-32GB": "fp16", "CPU": "fp32"}
    for device, name in names.items():
        assert default_precision(Cluster.parse(f"1 {device}")).name == name


def test_the_usual_batch_gives_every_device_work() -> None:
    assert default_batch(FACTS, NODE) == 128
    assert default_batch(FACTS, Cluster.parse("128 nodes x 8 H100-80GB")) == 1024
    assert default_batch(find_facts("resnet50"), NODE) == 256


def test_an_unknown_device_is_still_planned_for() -> None:
    found = search(find_facts("gpt-tiny"), Cluster.parse("1 CPU"), batch=8)
    assert found.best.plan.layout.num_ranks == 1 and found.forecasts[0].time is None


def test_host_memory_is_used_only_where_the_device_does_not_suffice() -> None:
    facts = find_facts("llama3.2-1b", 2048)
    small = search(facts, Cluster.parse("1 RTX4090"), batch=8, start=Plan.parse("bf16"))
    assert small.best.plan.offload == ("optimizer",)
    assert search(facts, Cluster.parse("1 A100-80GB"), batch=8).best.plan.offload == ()


def test_fewer_bytes_of_state_come_before_the_host_where_nobody_chose_a_precision() -> None:
    found = search(find_facts("llama3.2-1b", 2048), Cluster.parse("1 RTX4090"), batch=8)
    best = found.best.plan
    assert (str(best.precision), best.state, best.offload) == ("bf16-master", 14, ())
    assert any(rejected.plan.precision == BF16 for rejected in found.rejected)


def test_too_little_host_memory_is_a_reason() -> None:
    cluster = Cluster.parse("1 RTX4090, 8 GiB host")
    facts, start = find_facts("llama3.2-1b", 2048), Plan.parse("bf16")
    found = search(facts, cluster, batch=8, start=start)
    assert any(rejected.reason.startswith("host memory: needs") for rejected in found.rejected)


def test_where_nothing_fits_the_smallest_cluster_that_does_is_named() -> None:
    found = search(find_facts("llama2-7b", 2048), Cluster.parse("1 node x 1 L4"))
    assert not found.ranked and found.instead is not None
    with pytest.raises(PlanError, match=r"none of \d+ plans fits llama2-7b on .* a device\. The "):
        _ = found.best
    nodes = found.instead.cluster.num_nodes
    assert nodes & (nodes - 1), "not found by doubling alone"
    fewer = replace(found.cluster, num_nodes=nodes - 1)
    lean = [choice.plan for choice in search(found.facts, fewer).ranked]
    assert all(plan.offload or plan.state < 16 for plan in lean)


def test_where_no_number_of_a_device_would_do_a_larger_one_is_named() -> None:
    found = search(find_facts("llama3-70b", 4096), Cluster.parse("1 T4"), batch=1)
    assert found.instead is not None
    other = found.instead.cluster
    assert other.device.name == "A100-80GB" and other.devices_per_node == 8
    with pytest.raises(PlanError, match=r"The smallest that does: \d nodes x 8 A100-80GB"):
        _ = found.best


def test_a_model_for_no_cluster_says_so() -> None:
    giant = find_facts("llama:layers=1,hidden=1048576,heads=1024,vocab=256", 128)
    found = search(giant, Cluster.parse("1 node x 1 T4"), batch=1)
    with pytest.raises(PlanError, match="Use devices with more memory, or a smaller model"):
        _ = found.best


def test_a_search_where_nothing_is_short_of_memory_says_the_first_reason() -> None:
    found = replace(CHOICES, ranked=(), rejected=CHOICES.rejected[:1], instead=None)
    found = replace(found, rejected=(replace(found.rejected[0], peak_bytes=None),))
    with pytest.raises(PlanError, match="first because"):
        _ = found.best


def test_seventy_billion_on_a_thousand_devices_takes_seconds() -> None:
    start = thread_time()  # what others do meanwhile does not count
    found = search(find_facts("llama3-70b"), Cluster.parse("128 nodes x 8 H100-80GB"), batch=1024)
    assert found.num_plans > 2000 and found.ranked
    assert thread_time() - start < 10


def test_the_planner_needs_no_torch() -> None:
    code = "import sys, stepladder.planner; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_other_family_is_explained() -> None:
    explained = explain(CHOICES)
    families = {family_of(c.plan) for c in CHOICES.ranked}
    families |= {family_of(r.plan) for r in CHOICES.rejected}
    families -= {family_of(CHOICES.best.plan)}
    assert {verdict.family for verdict in explained.families} == families
    assert all(verdict.reason for verdict in explained.families)
    for verdict in (v for v in explained.families if v.slower is not None):
        own = [c for c in CHOICES.ranked if family_of(c.plan) == verdict.family]
        assert verdict.plan == own[0].plan, "its fastest member speaks for it"
        assert verdict.slower == pytest.approx(own[0].seconds / CHOICES.best.seconds - 1)


def test_a_family_that_does_not_fit_says_what_it_needs() -> None:
    facts, cluster = find_facts("llama3-70b"), Cluster.parse("8 nodes x 8 A100-80GB")
    verdicts = {v.family: v for v in explain(search(facts, cluster, batch=64)).families}
    assert verdicts["ddp"].slower is None
    assert verdicts["ddp"].reason.startswith("memory: needs ")


def test_the_next_rungs_are_forecast_too() -> None:
    lines = explain(CHOICES).next_rungs
    assert any(line.startswith("fp8: ") for line in lines)
    assert any(line.startswith("16 devices: ") for line in lines)


def test_why_names_causes_and_owners() -> None:
    time, memory = explain(CHOICES).why
    assert "matrix" in time and "GiB that can be used" in memory


def test_families_are_named_in_the_fields_own_words() -> None:
    names = {
        "bf16": "one device",
        "bf16 ddp replicate=4 micro=1": "ddp",
        "bf16 zero3 shard=8 tensor=2": "zero3 + tensor",
        "bf16 hsdp replicate=2 shard=4": "hsdp",
        "bf16 pipeline=4 tensor=2": "tensor + pipeline",
        "bf16 offload=optimizer": "one device + offload",
    }
    for text, name in names.items():
        assert family_of(Plan.parse(text)) == name


def test_recomputing_less_is_a_rung_where_memory_forced_more() -> None:
    choices = search(find_facts("llama3-8b", 16384), Cluster.parse("8 x A100-40GB"), batch=8)
    assert choices.best.plan.recompute.kind != "none"
    assert explain(choices).next_rungs[-1].startswith("recompute=none: ")
    assert explain(choices).next_rungs[-1].endswith("GiB more")


@pytest.mark.parametrize("batch", [0, -3])
def test_a_batch_of_nothing_is_refused(batch) -> None:
    with pytest.raises(PlanError, match=f"batch: {batch} is not a number of sequences"):
        search("gpt2", "1 A100", batch=batch)


def test_a_mixture_is_spread_and_never_cut_and_the_forecast_of_one_that_is_not_says_so() -> None:
    facts, cluster = find_facts("mixtral-8x7b", 4096), Cluster.parse("4 nodes x 8 H100-80GB")
    assert all(frame.layout.tensor == 1 for frame in plan_skeletons(facts, cluster))
    every = search(facts, cluster, batch=256)
    whole = tuple(choice for choice in every.ranked if choice.plan.layout.experts == 1)
    assert 0 < len(whole) < len(every.ranked)
    best = forecast(facts, whole[0].plan, cluster)
    found = replace(every, ranked=whole, forecasts=(best,))
    assert found.best.plan.zero == 3 and best.fits
    assert best.flops_per_step == pytest.approx(256 * 4096 * facts.flops_per_token)
    assert facts.flops_per_token < 8 * facts.active_parameters, "what a token meets is multiplied"
    (spread,) = [line for line in explain(found).next_rungs if line.startswith("experts=8: ")]
    plan = Plan.parse(f"{found.best.plan}".replace("shard=32", "shard=4 experts=8"))
    own = forecast(facts, plan, cluster)
    assert own.time is not None and best.time is not None
    faster = best.time.step_seconds / own.time.step_seconds
    assert spread == (
        f"experts=8: {faster:.2f} times as fast, with {own.memory.peak_bytes / 2**30:.0f} GiB"
    )
    assert not any("expert" in line for line in explain(CHOICES).next_rungs)


def test_two_kinds_of_layers_are_dealt_to_stages() -> None:
    shape = (
        "llama:layers=8,hidden=512,heads=8,ffn=2048,vocab=512,experts=8,active=2,dense=2,every=2"
    )
    facts = find_facts(shape, 512)
    found = forecast(facts, "bf16 zero1 pipeline=2 shard=4 micro=1 batch=16", NODE)
    assert found.fits and not found.reasons and found.time
    assert sum(stage.num_blocks for stage in split_stages(facts, 2, 1, False)) == 8


def test_print_shows_the_best_plans_first() -> None:
    found = search(find_facts("gpt2"), Cluster.parse("1 A100-80GB"), batch=8)
    title, first, *_ = str(found).splitlines()
    assert title.startswith("gpt2 on 1 node x 1 A100-80GB") and title.endswith("plans fit")
    assert first == f"1. {found.forecasts[0].plan}"
    html = found._repr_html_()
    assert html.count("<tr>") == 1 + min(5, len(found.forecasts)) and "<th>MFU</th>" in html
