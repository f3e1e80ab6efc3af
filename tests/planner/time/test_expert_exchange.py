"""Bytes that ranks send for their experts, and a forecast for a rank that gets more than others."""

import pytest

from stepladder.errors import StepladderError
from stepladder.planner import forecast

WIDE = "llama:layers=3,hidden=64,heads=4,vocab=256,ffn=256,experts=8,active=2,sequence=32"
CLUSTER = "8 x H100-80GB"


@pytest.mark.parametrize(
    ("words", "ways", "width", "times"),
    [
        ("fp32 experts=4 replicate=2 micro=2 batch=32", 4, 4, 4),
        ("bf16 experts=8 micro=2 batch=32", 8, 2, 4),
        ("fp32 zero3 shard=4 experts=2 micro=2 batch=32 recompute=blocks", 2, 4, 6),
    ],
)
def test_rows_travel_there_and_back_in_both_directions(words, ways, width, times):
    """In the width of the model's stream, whatever the width of its experts."""
    rows = 32 // 8 * 32 * 2  # of a rank: samples, tokens, experts of each
    expected = 3 * times * rows * 64 * width * (1 - 1 / ways)
    assert forecast(WIDE, words, CLUSTER).expert_sent_bytes == pytest.approx(expected)


def test_experts_that_stay_send_nothing():
    assert (
        forecast(WIDE, "fp32 ddp replicate=8 micro=2 batch=32", CLUSTER).expert_sent_bytes is None
    )


def test_a_rank_with_more_rows_takes_longer_and_holds_more():
    words = "bf16 experts=8 micro=4 batch=32"
    even, uneven = (forecast("mixtral-8x7b", words, CLUSTER, expert_load=x) for x in (1.0, 2.0))
    longer = uneven.time.communication / even.time.communication
    assert 1.5 < longer < 2.01
    assert 1.3 * even.time.matrix < uneven.time.matrix < 2 * even.time.matrix
    assert uneven.memory.activations > 1.2 * even.memory.activations
    assert uneven.memory.parameters == even.memory.parameters
    assert uneven.flops_per_step == even.flops_per_step
    assert uneven.expert_sent_bytes == even.expert_sent_bytes


def test_a_load_changes_nothing_where_every_rank_has_all_experts():
    words = "bf16 zero3 micro=1 batch=8"
    loads = (forecast("mixtral-8x7b", words, CLUSTER, expert_load=x) for x in (1.0, 2.0))
    assert len({one.time.step_seconds for one in loads}) == 1


def test_less_than_an_even_share_is_refused():
    with pytest.raises(StepladderError) as refused:
        forecast(WIDE, "fp32 experts=8 micro=2 batch=32", CLUSTER, expert_load=0.5)
    assert str(refused.value) == (
        "expert_load: 0.5 is less than an even share, which the busiest rank has at least. Use 1 "
        "or more, as report.expert_rank_load says."
    )
