"""Time by cause moves the way physics says.

How well it hits is in benchmarks/planner/published_runs.py.
"""

from math import log, sqrt
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.planner.time.device_speed import KERNEL_SECONDS
from stepladder.planner.time.step_time import factor_elements, forecast_time, passes_beside
from stepladder.planner.training_software import OURS, Software
from stepladder.record import Time
from stepladder.workload import MatmulFacts, find_facts

FACTS = find_facts("llama3-8b", 4096)
NODE = Cluster.parse("8 x H100-80GB")
NODES = Cluster.parse("4 nodes x 8 H100-80GB, 3200 Gb/s")


def time(text: str, *, on: Cluster = NODE, facts=FACTS, software=OURS) -> Time:
    found = forecast_time(facts, Plan.parse(text).settle(on.num_devices), on, software=software)
    assert found is not None
    return found


def test_matrix_time_is_work_over_rate_and_bytes_over_bandwidth() -> None:
    spent = time("bf16 zero3 micro=1")
    flops = 3 * sum(m.flops for part in FACTS.parts for m in part.matmuls * part.count)
    assert flops / 989.4e12 / 0.85 < spent.matrix < flops / 989.4e12 / 0.5


def test_recomputing_a_block_repeats_all_but_its_last_matmul() -> None:
    none, blocks = time("bf16 zero3 micro=1"), time("bf16 zero3 micro=1 recompute=blocks")
    assert blocks.attention == pytest.approx(none.attention * 4.5 / 3.5)
    assert 1.2 < blocks.matrix / none.matrix < 1.27
    late = time("bf16 zero3 micro=1 recompute=blocks", software=Software(stops_early=False))
    assert late.matrix > 1.04 * blocks.matrix


def test_one_step_in_a_hundred_taken_twice_costs_a_hundredth() -> None:
    once, twice = (time(f"bf16 zero3 micro=1 {words}") for words in ("", "recheck=100"))
    assert twice.step_seconds == pytest.approx(1.01 * once.step_seconds)


SLOW = Cluster.parse("4 nodes x 8 H100-80GB, 100 Gb/s")  # gathers take longer than blocks


def test_gathering_further_ahead_moves_nothing_faster_and_nothing_ahead_costs() -> None:
    one, three = (time(f"bf16 zero3 {words} micro=1") for words in ("prefetch=1", "prefetch=3"))
    assert three == one == time("bf16 zero3 micro=1")
    none = time("bf16 zero3 prefetch=0 micro=1")
    assert none.communication > one.communication
    assert time("bf16 zero2 prefetch=0 micro=1") == time("bf16 zero2 micro=1"), "nothing comes back"


def test_blocks_that_stay_gathered_come_once() -> None:
    usual, half, every = (
        time(f"bf16 zero3 {words} micro=1", on=SLOW).communication
        for words in ("", "gathered=17", "gathered=33")
    )
    assert usual - half == pytest.approx(half - every), "each block that stays spares one gather"
    block = max(part.parameters for part in FACTS.blocks)
    slowest = 2 * block * 31 / 32 / (100e9 / 8)  # seconds to gather it over the link
    assert (usual - half) / 16 == pytest.approx(slowest, rel=0.5)


def test_selective_recomputation_repeats_cheap_work_only() -> None:
    none, some = time("bf16 zero3 micro=1"), time("bf16 zero3 micro=1 recompute=selective")
    assert some.matrix == none.matrix and some.attention == none.attention
    moved_bytes = sum(block.moved.eager.num_bytes(2, 2) for block in FACTS.blocks)
    starts = sum(block.launches.eager for block in FACTS.blocks) * KERNEL_SECONDS
    extra = some.memory_bound - none.memory_bound - starts
    assert extra == pytest.approx(moved_bytes / (3.352e12 * 0.85)), "forward's cheap work, once"


def test_compiling_moves_less() -> None:
    assert (
        time("bf16 zero3 micro=1 compile=on").memory_bound < time("bf16 zero3 micro=1").memory_bound
    )


def test_plain_attention_pays_for_its_scores() -> None:
    plain, flash = time("bf16 zero3 micro=1 attention=plain"), time("bf16 zero3 micro=1")
    assert plain.memory_bound > 2 * flash.memory_bound


def test_fp8_halves_the_time_of_matmuls_and_adds_casts() -> None:
    eight, sixteen = time("fp8 zero3 micro=2"), time("bf16 zero3 micro=2")
    assert 0.5 < eight.matrix / sixteen.matrix < 0.65
    assert eight.memory_bound > sixteen.memory_bound


def test_wider_sharding_over_a_slow_network_is_exposed() -> None:
    slow = Cluster.parse("4 nodes x 8 H100-80GB, 100 Gb/s")
    text = "bf16 zero3 micro=1"
    assert time(text, on=slow).communication > 5 * time(text, on=NODES).communication
    inside = time("bf16 hsdp shard=8 micro=1", on=slow)
    assert inside.communication < 0.85 * time(text, on=slow).communication


def test_parameters_that_travel_in_fewer_bits_travel_faster() -> None:
    slow = Cluster.parse("4 nodes x 8 H100-80GB, 100 Gb/s")
    eight = time("fp8 zero3 micro=1", on=slow, software=Software(gather="float8"))
    assert eight.communication < 0.8 * time("fp8 zero3 micro=1", on=slow).communication


def test_accumulation_lets_replicas_communicate_once() -> None:
    one, four = time("bf16 ddp micro=1"), time("bf16 ddp micro=1 accumulate=4")
    assert four.communication < 1.1 * one.communication and four.matrix == 4 * one.matrix
    sliced = time("bf16 zero3 micro=1 accumulate=4").communication
    assert sliced == pytest.approx(4 * time("bf16 zero3 micro=1").communication)


def test_nothing_hides_tensor_parallel_communication() -> None:
    communication = time("bf16 zero3 shard=1 tensor=8 micro=8").communication
    assert communication > 3 * time("bf16 zero3 micro=1").communication
    hidden = time("bf16 zero3 shard=1 tensor=8 micro=8", software=Software(hides_tensor=True))
    assert hidden.communication < 0.6 * communication


def test_bubbles_shrink_with_more_micro_batches() -> None:
    few, many = (time(f"bf16 ddp pipeline=4 micro=1 accumulate={n}") for n in (4, 16))
    assert few.bubble == pytest.approx(many.bubble, rel=0.02), "but for a first sum that is none"
    assert few.bubble / few.step_seconds > 2 * many.bubble / many.step_seconds


def test_the_last_slice_of_a_causal_sequence_works_longest() -> None:
    sliced = time("bf16 zero3 shard=1 context=8 micro=1")
    assert sliced.attention == pytest.approx(
        time("bf16 zero3 micro=1").attention / 8 * 15 / 8, rel=0.1
    )


def test_compression_shrinks_what_travels() -> None:
    slow = Cluster.parse("4 nodes x 8 H100-80GB, 100 Gb/s")
    plain, half, factors = (
        time(f"bf16 ddp micro=1 compress={how}", on=slow).communication
        for how in ("none", "bf16", "powersgd:4")
    )
    assert half < 0.65 * plain and factors < 0.2 * plain


def test_slicing_the_optimizer_divides_its_time() -> None:
    assert time("bf16 zero1 micro=1").optimizer == pytest.approx(
        time("bf16 ddp micro=1").optimizer / 8
    )


def test_clipping_reads_the_gradients_again() -> None:
    clipped = time("bf16 ddp micro=1 'optimizer=adamw clip=1'").optimizer
    assert clipped == pytest.approx(time("bf16 ddp micro=1").optimizer * 10 / 7)


def test_offloading_is_slow_and_says_where() -> None:
    assert time("bf16 zero3 micro=1 offload=optimizer").optimizer > 0.5
    far = time("bf16 zero3 micro=1 offload=parameters").communication
    assert far > time("bf16 zero3 micro=1").communication
    away = time("bf16 zero3 micro=1 offload=activations").communication
    assert away > time("bf16 zero3 micro=1").communication


def test_tiny_kernels_wait_for_the_host() -> None:
    tiny = find_facts("llama-tiny")
    assert time("bf16 ddp micro=1", facts=tiny).host > time("bf16 ddp micro=1", facts=tiny).matrix
    assert time("bf16 ddp micro=1").host == 0


def test_many_nodes_wait_for_the_slowest() -> None:
    fast = "64 nodes x 8 H100-80GB, NVLink 9000000 GB/s, 32000000 Gb/s"
    spent = time("bf16 ddp micro=8", on=Cluster.parse(fast))
    waiting = 0.01 * sqrt(2 * log(64))
    assert spent.communication / spent.step_seconds == pytest.approx(waiting, rel=0.1)


def test_every_micro_batch_casts_parameters_and_adds_up_gradients() -> None:
    def moved(text: str) -> float:
        kernels = sum(
            launches.mixed * part.count
            for part in FACTS.parts
            for launches in (part.launches, part.launches_back)
        )
        micro_batches = Plan.parse(text).batch.micro_batches or 1
        streamed = time(text).memory_bound - micro_batches * kernels * KERNEL_SECONDS
        return streamed * 3.352e12 * 0.85 / FACTS.parameters

    cast = 2 * (2 + 4)
    assert 2 * moved("bf16 ddp micro=1") - moved("bf16 ddp micro=2") == pytest.approx(cast)
    again = moved("bf16 ddp micro=1 accumulate=4") - 4 * moved("bf16 ddp micro=1")
    assert again == pytest.approx(3 * 3 * 4), "three sums that read two and write one"


def test_autocast_moves_an_fp32_stream_and_casts_it_for_matmuls() -> None:
    width, tokens = 4096, 4096
    extra = time("bf16 ddp micro=2").memory_bound - time("bf16 ddp micro=1").memory_bound
    extra -= time("bf16-pure ddp micro=2").memory_bound - time("bf16-pure ddp micro=1").memory_bound
    blocks = 32 * (14 * 2 + 6 * 3)  # two norms and sums of the stream, three further casts
    ends = 14  # of the last norm
    assert extra == pytest.approx(3 * (blocks + ends) * width * tokens / (3.352e12 * 0.85))


def test_compiled_autocast_has_only_the_wide_stream_left() -> None:
    one, two = (time(f"bf16 ddp micro={n} compile=on").memory_bound for n in (1, 2))
    pure, more = (time(f"bf16-pure ddp micro={n} compile=on").memory_bound for n in (1, 2))
    wide = 3 * 4 * (32 * 2 + 1) * 4096 * 4096 / (3.352e12 * 0.85)
    assert (two - one) - (more - pure) == pytest.approx(wide)


def test_a_foreign_attention_kernel_has_its_own_speed() -> None:
    slow = time("bf16 zero3 micro=1", software=Software(attention_flops_per_second=1e13))
    assert slow.attention > 10 * time("bf16 zero3 micro=1").attention


def test_a_device_of_unknown_speed_has_no_time() -> None:
    assert (
        forecast_time(FACTS, Plan.parse("fp32 micro=1").settle(1), Cluster.parse("1 CPU")) is None
    )


@given(st.sampled_from(["ddp", "zero1", "zero2", "zero3"]), st.integers(0, 3))
def test_more_samples_never_take_less_time(word: str, power: int) -> None:
    small, large = (time(f"bf16 {word} micro={2 ** (power + more)}") for more in (0, 1))
    assert large.step_seconds > small.step_seconds
    assert large.step_seconds < 2.01 * small.step_seconds, "and never less per sample"


def test_zero2_gathers_once_a_batch_and_zero3_for_every_pass() -> None:
    slow = Cluster.parse("8 nodes x 8 H100-80GB, 50 Gb/s")

    def communication(text: str) -> float:
        return time(text, on=slow).communication

    once, twice = (communication(f"bf16 zero2 micro=1 accumulate={n}") for n in (1, 2))
    again, often = (communication(f"bf16 zero3 micro=1 accumulate={n}") for n in (1, 2))
    assert twice < 1.75 * once, "only gradients travel again"
    assert often > 1.9 * again


def test_chunks_paired_early_and_late_take_equally_long() -> None:
    text = "bf16 zero3 shard=1 context=8 micro=1"
    uneven, even = (time(text, software=Software(balances=each)) for each in (False, True))
    assert uneven.attention == pytest.approx(even.attention * 15 / 8, rel=0.05), (
        "but for moving keys"
    )


def test_matmuls_that_accumulate_in_place_move_fewer_bytes() -> None:
    text = "bf16 ddp micro=1 accumulate=4"
    masters = Software(masters=True, gradient="float32")
    apart = time(text, software=masters)
    inside = time(text, software=Software(masters=True, gradient="float32", adds_inside=True))
    held = sum(part.parameters * part.count for part in FACTS.parts)
    moved = 3 * (4 + 2) * held / (3.352e12 * 0.85)  # three of four passes find a sum
    assert apart.memory_bound - inside.memory_bound == pytest.approx(moved, rel=0.01)


def test_owners_that_get_only_their_gradients_wait_less() -> None:
    slow = Cluster.parse("4 nodes x 8 H100-80GB, 100 Gb/s")
    whole, own = (
        time("bf16 zero1 micro=1", on=slow, software=Software(scatters=each)).communication
        for each in (False, True)
    )
    assert own < 0.75 * whole


@pytest.mark.parametrize(("experts", "elements"), [(1, 4 * 30), (8, 4 * (8 + 200)), (2, 2 * 200)])
def test_the_gradient_of_all_experts_has_one_pair_of_factors(experts, elements) -> None:
    assert factor_elements(MatmulFacts(1, 10, 20, experts=experts), 4) == elements


def test_interleaved_gradients_travel_beside_the_passes_of_later_stretches() -> None:
    def passes(how: str, micro_batches: int = 32) -> float:
        plan = Plan.parse(f"bf16 zero1 pipeline=4 shard=2 micro=1 batch=64 {how}")
        sizes = SimpleNamespace(software=Software(scatters=True), micro_batches=micro_batches)
        return passes_beside(SimpleNamespace(plan=plan, sizes=sizes))  # type: ignore[arg-type]

    assert passes("") == 1.0
    assert passes("schedule=interleaved:4") == 3.0
    assert passes("schedule=interleaved:4", micro_batches=2) == 2.0


def test_keys_travel_beside_attention_where_a_framework_sends_them_around() -> None:
    plan = "bf16 zero3 shard=4 context=2 micro=1"
    long = find_facts("llama3-8b", 65536)
    ours, around = (
        time(plan, facts=long, software=s).communication
        for s in (OURS, Software(hides_context=True))
    )
    assert around < ours
