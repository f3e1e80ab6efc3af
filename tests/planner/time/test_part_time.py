from dataclasses import replace

import pytest

from stepladder.hardware import find_device
from stepladder.plan import BF16, FP32
from stepladder.plan.precision import FP8
from stepladder.planner.memory.recompute_depths import RecomputeShares
from stepladder.planner.time.device_speed import speed_of
from stepladder.planner.time.part_time import (
    Share,
    Work,
    attention_seconds,
    block_work,
    last_matmul_share,
    part_work,
)
from stepladder.planner.training_software import Software
from stepladder.workload import (
    Attention,
    ElementsByType,
    MatmulFacts,
    MemoryTraffic,
    Part,
    find_facts,
)
from stepladder.workload.facts import SlowKernel

BLOCK = find_facts("llama3-8b", 4096).parts[1]
SPEED = speed_of(find_device("H100-80GB"), BF16)
STARTS = BLOCK.launches.eager * SPEED.kernel_seconds  # of kernels, whatever they move


def test_backward_multiplies_twice_and_attends_two_and_a_half_times() -> None:
    forward, backward = part_work(BLOCK, Share(1), SPEED)
    assert backward.matrix == pytest.approx(2 * forward.matrix)
    assert backward.attention == pytest.approx(2.5 * forward.attention)


def test_tensor_ways_divide_work_but_not_evenly() -> None:
    whole, _ = part_work(BLOCK, Share(8), SPEED)
    cut, _ = part_work(BLOCK, Share(8, tensor=8), SPEED)
    assert whole.matrix / 8 < cut.matrix < whole.matrix / 5, "narrow products are slower"
    assert cut.memory_bound - STARTS == pytest.approx((whole.memory_bound - STARTS) / 8)


def test_recomputed_work_is_what_the_depths_say() -> None:
    none = block_work(BLOCK, Share(1), SPEED, RecomputeShares())
    whole = block_work(BLOCK, Share(1), SPEED, RecomputeShares(0, 0, 1))
    cheap = block_work(BLOCK, Share(1), SPEED, RecomputeShares(0, 1, 0))
    half = block_work(
        BLOCK, Share(1, software=Software(recomputed_matmuls=0.5)), SPEED, RecomputeShares(0, 1, 0)
    )
    assert none.recomputed == Work()
    assert whole.recomputed.matrix == pytest.approx(
        whole.forward.matrix * (1 - last_matmul_share(BLOCK))
    )
    assert cheap.recomputed == Work(memory_bound=cheap.forward.memory_bound)
    assert half.recomputed.matrix == pytest.approx(half.forward.matrix / 2)


def test_the_last_matmul_of_a_block_is_its_down_projection() -> None:
    down = 14336 / (2 * 4096 + 2 * 1024 + 3 * 14336)
    assert last_matmul_share(BLOCK) == pytest.approx(down)


def test_fp8_casts_are_memory_bound() -> None:
    eight = speed_of(find_device("H100-80GB"), FP8)
    assert part_work(BLOCK, Share(1), eight)[0].memory_bound > (
        part_work(BLOCK, Share(1), eight, wide=True)[0].memory_bound
    )


def test_float32_moves_twice_the_bytes() -> None:
    wide = part_work(BLOCK, Share(1), speed_of(find_device("H100-80GB"), FP32))[0]
    narrow = part_work(BLOCK, Share(1), SPEED)[0]
    assert wide.memory_bound - STARTS == pytest.approx(2 * (narrow.memory_bound - STARTS))


def test_a_convolution_of_few_channels_is_slower_than_one_of_many_and_both_than_a_matmul() -> None:
    product = Part("", 0, matmuls=(MatmulFacts(196, 4608, 512),))
    colours = Part("", 0, matmuls=(MatmulFacts(196, 4608, 512, "", 3, 1),))
    many = Part("", 0, matmuls=(MatmulFacts(196, 4608, 512, "", 512),))
    seconds = [part_work(part, Share(64), SPEED)[0].matrix for part in (product, many, colours)]
    assert seconds == sorted(seconds) and seconds[2] > 5 * seconds[1]
    forward, backward = part_work(colours, Share(64), SPEED)
    assert backward.matrix == pytest.approx(forward.matrix), "nobody asks for an image's gradient"


def test_a_norm_over_channels_is_as_fast_as_it_has_channels() -> None:
    def seconds(lanes: int) -> float:
        part = Part("", 0, moved=MemoryTraffic(slow=(SlowKernel("channel", 1e7, lanes),)))
        return part_work(part, Share(1), SPEED)[0].memory_bound

    assert seconds(64) == pytest.approx(2 * seconds(128))
    assert seconds(10**6) == pytest.approx(1e7 * 2 / SPEED.non_streaming[2]), "memory ends that"


def test_what_backward_moves_is_what_was_traced_of_it() -> None:
    part = Part(
        "",
        0,
        moved=MemoryTraffic(ElementsByType(work=1e6)),
        moved_back=MemoryTraffic(ElementsByType(work=5e6)),
    )
    forward, backward = part_work(part, Share(1), SPEED)
    assert backward.memory_bound == pytest.approx(5 * forward.memory_bound)
    fused = replace(part, moved=MemoryTraffic(compiled=ElementsByType(work=1e6)))
    forward, backward = part_work(fused, Share(1, compiled=True), SPEED)
    assert backward.memory_bound == pytest.approx(2 * forward.memory_bound)


def test_short_sequences_attend_less_efficiently() -> None:
    def rate(length: int) -> float:
        block = find_facts("llama3-8b", length).parts[1]
        assert block.attention
        return block.attention.flops / part_work(block, Share(1), SPEED)[0].attention

    assert rate(512) < 0.8 * rate(8192) < SPEED.attention


def test_scores_that_are_not_kept_are_made_once_more() -> None:
    kept, again = (
        part_work(BLOCK, Share(1, flash=False, software=Software(recomputes_scores=each)), SPEED)
        for each in (False, True)
    )
    assert again[0] == kept[0], "forward is the same"
    assert again[1].attention - kept[1].attention == pytest.approx(kept[0].attention)
    assert again[1].memory_bound > kept[1].memory_bound


def test_fewer_bytes_a_score_take_less_time() -> None:
    narrow = Share(1, flash=False, software=Software(score_bytes=13.0))
    scores = BLOCK.attention.scores * 13.0 / SPEED.bandwidth
    whole = part_work(BLOCK, Share(1, flash=False), SPEED)[0].memory_bound
    assert whole - part_work(BLOCK, narrow, SPEED)[0].memory_bound == pytest.approx(scores)


def test_weights_cast_once_a_batch_leave_the_activations() -> None:
    eight = speed_of(find_device("H100-80GB"), FP8)
    every, once = (
        part_work(BLOCK, Share(1, weight_casts=share), eight)[0].memory_bound for share in (1, 0)
    )
    weights = sum(2 * m.inner * m.columns for m in BLOCK.matmuls)
    assert every - once == pytest.approx(6.0 * weights / 3 / eight.bandwidth)
    cheap = Share(1, weight_casts=0, software=Software(cast_bytes=3.0))
    assert part_work(BLOCK, cheap, eight)[0].memory_bound < once


def test_images_with_channels_innermost_are_not_moved_about() -> None:
    many = Part("", 0, matmuls=(MatmulFacts(196, 4608, 512, "", 512),))
    rows, stored = (
        part_work(many, Share(64, channels_last=each), SPEED)[0].matrix for each in (False, True)
    )
    assert stored < 0.6 * rows
    plain = speed_of(find_device("H100-80GB"), FP32)
    product = Part("", 0, matmuls=(MatmulFacts(196, 4608, 512),))
    seconds = [part_work(part, Share(64), plain)[0].matrix for part in (many, product)]
    assert seconds[0] <= seconds[1], "vector units read them as they are"


def test_norms_over_channels_keep_their_pace_compiled_unless_channels_lie_innermost() -> None:
    norm = SlowKernel("channel", 2e6, 64)
    part = Part(
        "", 0, moved=MemoryTraffic(ElementsByType(work=1e6), ElementsByType(work=1e6), slow=(norm,))
    )

    def seconds(compiled: bool, channels_last: bool) -> float:
        share = Share(1, compiled=compiled, channels_last=channels_last)
        return part_work(part, share, SPEED)[0].memory_bound

    slow = 2e6 / (SPEED.kernel_rates["channel"] * 64)
    assert seconds(True, False) - seconds(True, True) == pytest.approx(slow)
    streamed = seconds(False, True) - 1e6 * 2 / SPEED.bandwidth
    assert streamed == pytest.approx(2e6 * 2 / SPEED.bandwidth)


def experts(number: int) -> Part:
    return Part("experts", 0, matmuls=(MatmulFacts(8192, 4096, 8192, experts=number),))


def test_experts_read_every_weight_and_fill_no_last_tile() -> None:
    seconds = [part_work(experts(n), Share(1), SPEED)[0].matrix for n in (1, 8, 64)]
    assert seconds[0] < seconds[1] < seconds[2]
    wasted = 2 * 64 * 64 * 4096 * 8192 / SPEED.wide
    read = SPEED.edges * 2 * (63 * 4096 * 8192 + 64 * 64 * 12288) / SPEED.bandwidth
    assert seconds[2] - seconds[0] == pytest.approx(wasted + read)
    long = [part_work(experts(n), Share(512), SPEED)[0].matrix for n in (1, 64)]
    assert long[1] / long[0] < 1.01 < seconds[2] / seconds[0]


def test_experts_stay_in_the_work_type_and_under_autocast_in_fp32() -> None:
    eight = speed_of(find_device("H100-80GB"), FP8)
    wide, narrow = (part_work(experts(8), Share(1), speed)[0] for speed in (SPEED, eight))
    assert narrow.matrix == pytest.approx(wide.matrix)
    assert narrow.memory_bound == wide.memory_bound, "nothing is cast"
    single = part_work(experts(8), Share(1, autocast=True), SPEED)[0]
    alone = part_work(experts(8), Share(1), speed_of(find_device("H100-80GB"), FP32))[0]
    assert single.matrix == pytest.approx(alone.matrix)


def test_a_stream_that_is_whole_on_every_tensor_rank_is_moved_by_every_one() -> None:
    whole = replace(BLOCK, whole=True)
    one, four = (part_work(whole, Share(8, tensor=n), SPEED)[0].memory_bound for n in (1, 4))
    assert one == four > part_work(BLOCK, Share(8, tensor=4), SPEED)[0].memory_bound


def test_narrow_heads_attend_more_slowly_unless_a_rate_was_measured() -> None:
    wide, narrow = Attention(16, 16, 128, 4096), Attention(32, 32, 64, 4096)
    assert wide.flops == narrow.flops
    one, other = (attention_seconds(a, Share(1), SPEED)[0] for a in (wide, narrow))
    assert 1.1 < other / one < 1.3
    measured = replace(SPEED, exponentials=0.0)
    one, other = (attention_seconds(a, Share(1), measured)[0] for a in (wide, narrow))
    assert other == pytest.approx(one)


def test_fp8_casts_nothing_for_a_frozen_weights_gradient_nor_for_adapters() -> None:
    eight = speed_of(find_device("H100-80GB"), FP8)

    def casts(matrix: MatmulFacts) -> float:
        parts = [Part("one", 0, matmuls=(replace(matrix, backward=b),)) for b in (2, 1)]
        spent = [sum(w.memory_bound for w in part_work(p, Share(1), eight)) for p in parts]
        return spent[1] / spent[0] if spent[0] else 0.0

    assert casts(MatmulFacts(4096, 4096, 4096)) == pytest.approx(2 / 3)
    assert casts(MatmulFacts(4096, 4096, 16)) == 0.0
