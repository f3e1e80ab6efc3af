"""Memory by owner: state is exact arithmetic, the rest moves the way it must."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.hardware import Cluster
from stepladder.plan import Plan, SettledPlan
from stepladder.planner import forecast, forecast_moments, forecast_state
from stepladder.planner.memory.byte_sizes import sizes_of
from stepladder.planner.memory.forecast_memory import (
    FRAGMENTS,
    MOST_FRAGMENTS,
    WORKSPACE_BYTES,
    forecast_memory,
)
from stepladder.planner.memory.step_moments import (
    copies_bytes,
    fresh_bytes,
    gathered_bytes,
    runs_of,
)
from stepladder.planner.pipeline_stages import Stage
from stepladder.planner.training_software import OURS, Software
from stepladder.record import Calibration, Memory
from stepladder.workload import Shape, facts_of_shape, find_facts

FACTS = find_facts("llama3-8b", 4096)
NODE = Cluster.parse("8 x H100-80GB")
N = FACTS.parameters


def memory(text: str, *, on: Cluster = NODE, facts=FACTS, software=OURS) -> Memory:
    settled = Plan.parse(text).settle(on.num_devices)
    return forecast_memory(facts, settled, on, software=software)[0]


def test_mixed_precision_adam_keeps_sixteen_bytes_a_parameter() -> None:
    held = memory("bf16 ddp micro=1")
    assert held.state_bytes == pytest.approx(16 * N)
    tables = FACTS.entry.parameters + FACTS.exit.whole_parameters + 64 * 4096
    assert held.working == pytest.approx(2 * (N - tables)), "autocast copies products' weights"


def test_a_rechecked_step_keeps_a_copy_of_the_state_beside_it() -> None:
    for plan in ("bf16 ddp micro=1", "bf16 zero1 micro=1", "bf16 zero3 micro=1"):
        once, twice = memory(plan), memory(f"{plan} recheck=1000")
        copied = once.parameters + once.optimizer
        assert twice.temporary == pytest.approx(once.temporary + copied)


def test_plain_float32_needs_no_working_copy() -> None:
    assert memory("fp32 ddp micro=1").working == 0


def test_each_zero_rung_slices_one_thing_more() -> None:
    ddp, one, two, three = (memory(f"bf16 {w} micro=1") for w in ("ddp", "zero1", "zero2", "zero3"))
    assert one.optimizer == pytest.approx(ddp.optimizer / 8)
    assert one.gradients == ddp.gradients and two.gradients == pytest.approx(ddp.gradients / 8)
    assert two.parameters == pytest.approx(ddp.parameters / 8)
    assert three.working < two.working
    assert ddp.peak_bytes > one.peak_bytes > two.peak_bytes > three.peak_bytes


def test_sharding_inside_a_node_divides_by_the_node() -> None:
    two_nodes = Cluster.parse("2 nodes x 8 H100-80GB")
    assert memory("bf16 hsdp shard=8 micro=1", on=two_nodes).optimizer == pytest.approx(N)


def test_slices_of_a_sequence_share_the_state() -> None:
    assert memory("bf16 zero3 shard=4 context=2 micro=1").optimizer == pytest.approx(N)


def test_pure_bf16_halves_the_state() -> None:
    assert memory("bf16-pure ddp micro=1").state_bytes == pytest.approx(8 * N)


def test_sgd_without_momentum_remembers_nothing() -> None:
    assert memory("bf16 ddp micro=1 optimizer=sgd").optimizer == 0


def test_recomputing_more_keeps_less() -> None:
    depths = ("none", "every:2", "selective", "blocks")
    kept = [memory(f"bf16 zero3 micro=4 recompute={depth}").activations for depth in depths]
    assert kept[0] > kept[2] > kept[3] and kept[0] > kept[1] > kept[3]


def test_a_budget_bounds_the_activations() -> None:
    held = memory("bf16 zero3 micro=4 recompute=20GiB")
    assert 15 * 2**30 < held.activations < 21 * 2**30


def test_plain_attention_keeps_every_score() -> None:
    more = memory("bf16 zero3 micro=1 attention=plain").activations
    scores = 32 * 32 * 4096**2 * 6
    assert more - memory("bf16 zero3 micro=1").activations == pytest.approx(scores, rel=0.05)


def test_logits_hold_twelve_bytes_a_class_and_two_more_where_they_are_not_let_go() -> None:
    text, each = "bf16 zero3 micro=2 recompute=blocks", 2 * 4096 * FACTS.vocab
    assert memory(text).logits == each * 12
    assert memory(text, software=Software(keeps_logits=True)).logits == each * 14
    assert memory(text, software=Software(loss="fused")).logits in (0, each * 4)


def test_forward_ends_with_every_working_copy_and_the_logits_beside_their_softmax() -> None:
    facts = find_facts("gpt:layers=12,hidden=1024,heads=16,vocab=2048", 128)
    held = memory("bf16 ddp micro=1 recompute=blocks", facts=facts)
    assert held.logits == 128 * 2048 * (2 + 4 + 4)
    assert held.working == 2 * (12 * 12 * 1024**2 + 2048 * 1024)


def test_tensor_ways_divide_the_logits() -> None:
    assert memory("bf16 zero3 shard=4 tensor=2 micro=2").logits == 2 * 4096 * FACTS.vocab * 6


def test_gathered_inputs_are_kept_unless_gathered_again() -> None:
    text = "bf16 zero3 shard=1 tensor=8 micro=8"
    kept = memory(text).activations
    assert memory(text, software=Software(regathers=True)).activations < 0.8 * kept


def test_what_is_gathered_is_what_the_other_ranks_held() -> None:
    text = "bf16 zero3 shard=1 tensor=8 micro=8"
    more = memory(text).activations - memory(text, software=Software(regathers=True)).activations
    gathers, others = 32 * 2 + 1, 7 / 8  # two a block, and one for the head
    assert more == pytest.approx(gathers * 8 * 4096 * 4096 * others * 2)


def test_a_recomputed_block_stands_in_full_beside_the_others_inputs() -> None:
    facts = find_facts("llama:layers=8,hidden=1024,heads=8,ffn=4096,vocab=64", 1024)
    held = memory("bf16 zero3 micro=8 recompute=blocks", facts=facts).activations
    d, f = 8 * 1024 * 1024 * 2, 8 * 1024 * 4096 * 2  # bytes of one width and of one inner width
    full = 2 * d + 5 * d + 2 * d + 4 * f
    assert held == pytest.approx(8 * d + (full - d), rel=0.005), "what the exit kept is gone"


def test_the_first_stage_holds_the_most_micro_batches() -> None:
    one = memory("bf16 ddp pipeline=4 micro=1 accumulate=8")
    every = memory("bf16 ddp pipeline=4 micro=1 accumulate=8 schedule=gpipe")
    assert every.activations > 1.5 * one.activations


def test_offloading_moves_bytes_to_the_host() -> None:
    settled = Plan.parse("bf16 zero3 micro=1 offload=optimizer").settle(8)
    device, host = forecast_memory(FACTS, settled, NODE)
    assert device.optimizer == 0 and host == pytest.approx((8 + 4 + 4) * N / 8)
    assert device.parameters == pytest.approx(4 * N / 8), "the host's copy is a copy"
    settled = Plan.parse("bf16 zero3 micro=1 offload=parameters").settle(8)
    device, host = forecast_memory(FACTS, settled, NODE)
    assert device.parameters == device.gradients == device.optimizer == 0
    assert host == pytest.approx(16 * N / 8)
    away = memory("bf16 zero3 micro=4 offload=activations").activations
    assert away < 0.2 * memory("bf16 zero3 micro=4").activations


def test_a_master_copy_lives_with_the_optimizer_where_the_software_says_so() -> None:
    held = memory("bf16 ddp micro=1", software=Software(masters=True, gradient="float32"))
    assert held.parameters == pytest.approx(2 * N) and held.gradients == pytest.approx(4 * N)
    assert held.optimizer == pytest.approx(12 * N) and held.working == 0


@pytest.mark.parametrize(
    ("word", "each"), [("", 12), ("state=14", 10), ("state=10", 6), ("state=7", 3.125)]
)
def test_masters_and_moments_take_the_bytes_a_plan_names(word: str, each: float) -> None:
    [held] = forecast_state(FACTS, Plan.parse(f"bf16-master {word} micro=1").settle(1))
    assert held.parameters == pytest.approx(2 * N) and held.gradients == pytest.approx(2 * N)
    assert held.optimizer == pytest.approx(each * N)
    [held] = forecast_state(FACTS, Plan.parse(f"bf16-master {word} micro=1 batch=4").settle(1))
    assert held.gradients == pytest.approx(4 * N), "micro-batches add up in float32"


def test_a_processor_has_no_context() -> None:
    held = memory("fp32 ddp micro=1", on=Cluster.parse("8 x CPU"))
    assert held.context == held.reserved == 0


def test_a_measured_context_replaces_the_usual_one() -> None:
    settled = Plan.parse("bf16 micro=1").settle(1)
    alone = Cluster.parse("1 H200")
    held = forecast_memory(FACTS, settled, alone, Calibration(context_bytes=5))[0]
    assert held.context == 5


@given(st.sampled_from(["ddp", "zero1", "zero2", "zero3"]), st.integers(0, 3))
def test_a_larger_micro_batch_never_needs_less(word: str, power: int) -> None:
    small, large = (memory(f"bf16 {word} micro={2 ** (power + more)}") for more in (0, 1))
    assert large.peak_bytes > small.peak_bytes


@pytest.mark.parametrize(
    ("text", "published_gib"),
    [("selective", 77.0), ("blocks", 84.0)],
)
def test_published_peaks_of_llama_8b_are_met_within_five_percent(text, published_gib) -> None:
    """torchtitan on 8 x H100-96GB: reserved memory, context not in it."""
    length, layout, micro = (
        (8192, "shard=8", 2) if text == "selective" else (131072, "context=4", 1)
    )
    cluster = Cluster.parse("8 x H100-96GB")
    plan = Plan.parse(f"bf16 zero3 {layout} micro={micro} recompute={text} compile=on")
    plan = replace(plan, layout=replace(plan.layout, shard=8 // plan.layout.context))
    software = Software(recomputed_matmuls=0.5, keeps_logits=True)
    held = forecast(find_facts("llama3-8b", length), plan, cluster, software=software).memory
    assert (held.peak_bytes - held.context) / 2**30 == pytest.approx(published_gib, rel=0.05)


def test_one_rank_alone_makes_its_gradients_anew_each_step() -> None:
    alone, facts = Cluster.parse("1 H200"), find_facts("gpt2")
    once = memory("fp32 micro=16", on=alone, facts=facts)
    again = memory("fp32 micro=16 accumulate=2", on=alone, facts=facts)
    assert once.logits and once.gradients == 0, "none exist yet when the loss is computed"
    assert again.gradients == 4 * facts.parameters


def test_a_large_model_peaks_when_all_gradients_are_there() -> None:
    facts = find_facts("llama:layers=16,hidden=2048,heads=16,ffn=8192,vocab=512", 64)
    held = memory("fp32 micro=1", on=Cluster.parse("1 H200"), facts=facts)
    assert held.gradients == pytest.approx(4 * facts.parameters)


def test_recomputed_blocks_make_their_working_copies_one_at_a_time() -> None:
    facts = find_facts("llama:layers=16,hidden=2048,heads=16,ffn=8192,vocab=512", 64)
    alone = Cluster.parse("1 H200")
    held = memory("bf16 micro=1 recompute=blocks", on=alone, facts=facts)
    assert held.working < 0.2 * 2 * facts.parameters


def test_the_moments_of_a_step_hold_the_forecast_peak():
    facts, cluster = find_facts("llama3-8b", 4096), Cluster.parse("8 x H100-80GB")
    plan = Plan.parse("bf16 zero3 shard=8 micro=1 batch=8 recompute=blocks").settle(8)
    moments = forecast_moments(facts, plan, cluster)
    names = [name for name, _ in moments]
    assert names == ["answer", "loss", "head", "blocks", "blocks", "entry", "step"]
    peak = max(memory.allocated_bytes for _, memory in moments)
    assert forecast(facts, plan, cluster).memory.allocated_bytes == peak
    last, first = (memory for name, memory in moments if name == "blocks")
    assert last.activations > first.activations, "in the order of a backward pass"


def test_what_is_frozen_gets_neither_gradients_nor_state() -> None:
    facts = find_facts("gpt-tiny")
    frozen = replace(
        facts,
        parts=tuple(replace(part, frozen_parameters=part.parameters) for part in facts.parts[:-1])
        + facts.parts[-1:],
    )
    plan = Plan.parse("fp32 micro=1").settle(1)
    whole, rest = (forecast_state(each, plan)[0] for each in (facts, frozen))
    held = sum(part.parameters * part.count for part in facts.parts[:-1])
    assert rest.parameters == whole.parameters
    assert whole.gradients - rest.gradients == 4 * held
    assert whole.optimizer - rest.optimizer == 8 * held


def test_what_the_allocator_holds_beyond_is_an_interval_around_the_peak() -> None:
    plan = Plan.parse("bf16 zero3 micro=2 recompute=selective")
    found = forecast(FACTS, plan, NODE)
    assert found.peak_bytes is not None
    held = found.memory.allocated_bytes + found.memory.context
    assert found.peak_bytes.low == held < found.memory.peak_bytes < found.peak_bytes.high
    owned = (found.memory.activations, found.memory.logits, found.memory.communication)
    moving = sum(owned) + found.memory.working + found.memory.temporary - WORKSPACE_BYTES
    assert found.peak_bytes.high - held == pytest.approx(MOST_FRAGMENTS * moving, rel=1e-3)


def test_an_optimizer_that_copies_gradients_needs_room_beside_its_state() -> None:
    plain, copying = (
        memory("bf16 ddp micro=1 recompute=blocks", software=Software(update_bytes=size))
        for size in (0.0, 10.0)
    )
    assert copying.temporary == pytest.approx(10 * N, rel=0.02)
    assert copying.allocated_bytes > plain.allocated_bytes


def test_flat_copies_find_no_room_in_what_the_passes_left() -> None:
    text = "bf16 ddp micro=4 recompute=blocks"
    copying = memory(text, software=Software(update_bytes=10.0))
    passes = forecast_moments(FACTS, Plan.parse(text).settle(NODE.num_devices), NODE)
    left = max(m.activations + m.logits + m.temporary for _, m in passes) - WORKSPACE_BYTES
    moving = copying.temporary - WORKSPACE_BYTES + copying.communication
    assert copying.reserved == pytest.approx(FRAGMENTS * moving + left, rel=0.02)


def test_a_stream_that_is_not_sliced_is_kept_whole_by_every_tensor_rank() -> None:
    text = "bf16-pure tensor=8 micro=8 recompute=blocks"
    sliced, whole = (memory(text, software=Software(slices_stream=each)) for each in (True, False))
    inputs = 8 * 4096 * 4096 * 2  # of one block
    assert whole.activations - sliced.activations == pytest.approx(33 * inputs * 7 / 8, rel=0.02)


def test_buckets_of_another_size_stand_twice() -> None:
    held = memory("bf16 ddp micro=1", software=Software(bucket_bytes=2.0**30))
    assert held.communication == 2 * 2**30


@pytest.mark.parametrize(("model", "tensors"), [("gpt2", 1), ("llama3.2-1b", 0)])
def test_small_blocks_compiled_in_one_piece_keep_one_tensor_more_each(model, tensors) -> None:
    facts, plan = find_facts(model), Plan.parse("bf16 ddp compile=on micro=1")
    one, two = (
        forecast_memory(facts, plan.settle(n), Cluster.parse(f"{n} x H200"))[0].activations
        for n in (1, 2)
    )
    block = facts.parts[1]
    assert one - two == pytest.approx(tensors * 2 * block.output * block.count)


def test_experts_are_gathered_with_their_layer_and_autocast_copies_none() -> None:
    mixture = Shape("llama", 4, 256, 4, 4, 512, 64, 96, experts=8, active=2)
    facts = facts_of_shape(mixture)
    (_, block, _), sizes = facts.parts, sizes_of(facts, SettledPlan(Plan.parse("bf16").settle(1)))
    attention, router = 4 * 256 * 256, 8 * 256
    assert copies_bytes(block, sizes) == 2 * (attention + router)
    assert fresh_bytes(block, sizes) == 4 * 8 * 256 * 1024, "one gradient for all experts"
    plan = Plan.parse("bf16 tensor=4 micro=1").settle(4)
    cut, stage = sizes_of(facts, SettledPlan(plan)), Stage(((block, 4),))
    assert fresh_bytes(block, cut) == fresh_bytes(block, sizes), "no rank cuts experts"
    assert fresh_bytes(replace(block, whole=False), cut) == fresh_bytes(block, sizes) / 4
    scratch = next(runs_of(plan, stage, cut)).scratch
    assert scratch == next(runs_of(Plan.parse("bf16 micro=1").settle(1), stage, sizes)).scratch
    sliced = sizes_of(facts, SettledPlan(Plan.parse("bf16 zero3 shard=2").settle(2)))
    assert gathered_bytes(facts, stage, sliced) == 2 * 2 * block.parameters
