import pytest

from stepladder.hardware import find
from stepladder.plan import BF16, FP8, FP32
from stepladder.planner.depths import Depths
from stepladder.planner.speed import speed_of
from stepladder.planner.work import Share, Work, block_work, last_share, part_work
from stepladder.workload import find_facts

BLOCK = find_facts("llama3-8b", 4096).parts[1]
SPEED = speed_of(find("H100-80GB"), BF16)


def test_backward_multiplies_twice_and_attends_two_and_a_half_times() -> None:
    forward, backward = part_work(BLOCK, Share(1), SPEED)
    assert backward.matrix == pytest.approx(2 * forward.matrix)
    assert backward.attention == pytest.approx(2.5 * forward.attention)


def test_tensor_ways_divide_work_but_not_evenly() -> None:
    whole, _ = part_work(BLOCK, Share(8), SPEED)
    cut, _ = part_work(BLOCK, Share(8, tensor=8), SPEED)
    assert whole.matrix / 8 < cut.matrix < whole.matrix / 5, "narrow products are slower"
    assert cut.memory_bound == pytest.approx(whole.memory_bound / 8)


def test_recomputed_work_is_what_the_depths_say() -> None:
    none = block_work(BLOCK, Share(1), SPEED, Depths())
    whole = block_work(BLOCK, Share(1), SPEED, Depths(0, 0, 1))
    cheap = block_work(BLOCK, Share(1), SPEED, Depths(0, 1, 0))
    half = block_work(BLOCK, Share(1, products_again=0.5), SPEED, Depths(0, 1, 0))
    assert none.again == Work()
    assert whole.again.matrix == pytest.approx(whole.forward.matrix * (1 - last_share(BLOCK)))
    assert cheap.again == Work(memory_bound=cheap.forward.memory_bound)
    assert half.again.matrix == pytest.approx(half.forward.matrix / 2)


def test_the_last_product_of_a_block_is_its_way_down() -> None:
    down = 14336 / (2 * 4096 + 2 * 1024 + 3 * 14336)
    assert last_share(BLOCK) == pytest.approx(down)


def test_fp8_casts_are_memory_bound() -> None:
    eight = speed_of(find("H100-80GB"), FP8)
    assert part_work(BLOCK, Share(1), eight)[0].memory_bound > (
        part_work(BLOCK, Share(1), eight, wide=True)[0].memory_bound
    )


def test_float32_moves_twice_the_bytes() -> None:
    wide = part_work(BLOCK, Share(1), speed_of(find("H100-80GB"), FP32))[0]
    assert wide.memory_bound == pytest.approx(2 * part_work(BLOCK, Share(1), SPEED)[0].memory_bound)


def test_short_sequences_attend_less_efficiently() -> None:
    def rate(length: int) -> float:
        block = find_facts("llama3-8b", length).parts[1]
        assert block.attention
        return block.attention.flops / part_work(block, Share(1), SPEED)[0].attention

    assert rate(512) < 0.8 * rate(8192) < SPEED.attention
