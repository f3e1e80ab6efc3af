import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.hardware import Cluster
from stepladder.plan import Layout
from stepladder.planner.time.collective_time import (
    BETWEEN,
    CONGESTION,
    INSIDE,
    RankGroup,
    network_of,
    size_and_stride,
)
from stepladder.record import Calibration

CLUSTER = Cluster.parse("4 nodes x 8 H100-80GB, NVLink 900 GB/s, 3200 Gb/s")
NETWORK = network_of(CLUSTER)


def test_neighbours_communicate_over_the_link_inside_a_node() -> None:
    group = NETWORK.group(Layout(shard=4, tensor=8), "tensor")
    assert (group.ways, group.nodes) == (8, 1)
    assert group.bytes_per_second == pytest.approx(450e9 * INSIDE)


def test_a_group_with_one_rank_a_node_has_its_share_of_the_network() -> None:
    group = NETWORK.group(Layout(shard=4, tensor=8), "shard")
    assert (group.ways, group.nodes) == (4, 4)
    assert group.bytes_per_second == pytest.approx(400e9 / 8 * BETWEEN / (1 + CONGESTION))


def test_a_group_that_fills_its_nodes_has_all_of_the_network() -> None:
    group = NETWORK.group(Layout(shard=32), "shard")
    assert group.bytes_per_second == pytest.approx(400e9 * BETWEEN / (1 + CONGESTION))


def test_many_nodes_crowd_the_network() -> None:
    few, many = (
        network_of(Cluster.parse(f"{n} nodes x 8 H100-80GB")).group(Layout(shard=8 * n), "shard")
        for n in (2, 64)
    )
    assert few.bytes_per_second == pytest.approx(many.bytes_per_second * (1 + 5 * CONGESTION))


def test_neighbouring_axes_are_one_group() -> None:
    assert size_and_stride(
        Layout(pipeline=2, shard=4, context=2, tensor=2), ("shard", "context")
    ) == (8, 2)
    assert size_and_stride(Layout(pipeline=2, replicate=2, shard=4), ("replicate",)) == (2, 4)


def test_one_rank_has_no_communication() -> None:
    group = NETWORK.group(Layout(shard=32), "tensor")
    assert group.gather(1e9) == group.all_reduce(1e9) == group.send(1e9) == 0


def test_an_all_reduce_moves_twice_what_a_gather_moves() -> None:
    group = NETWORK.group(Layout(shard=32), "shard")
    assert group.all_reduce(1e10) == pytest.approx(2 * group.gather(1e10), rel=0.02)


def test_small_messages_cost_their_latency() -> None:
    group = NETWORK.group(Layout(shard=32), "shard")
    assert group.gather(1) == pytest.approx(27 * 3.4e-6 + 4 * 14e-6, rel=0.01)
    assert group.all_reduce(1) < 2 * group.gather(1), "a tree is shorter than a ring"


@given(st.integers(1, 5), st.floats(1, 1e11), st.floats(1, 1e11))
def test_more_bytes_never_take_less_time(power: int, one: float, other: float) -> None:
    group = NETWORK.group(Layout(shard=2**power), "shard")
    small, large = sorted((one, other))
    assert group.gather(small) <= group.gather(large)


def test_measured_links_replace_the_usual_share() -> None:
    found = Calibration(
        inside_bytes_per_second=1e11, between_bytes_per_second=1e10, inside_latency_seconds=1e-3
    )
    network = network_of(CLUSTER, found)
    assert network.group(Layout(tensor=8, shard=4), "tensor").gather(1) == pytest.approx(7e-3)
    assert network.group(Layout(tensor=8, shard=4), "tensor").bytes_per_second == 1e11
    assert network.group(Layout(shard=16), "shard").bytes_per_second == 1e10


def test_inside_a_node_a_tree_is_as_high_as_its_ranks_ask() -> None:
    group = RankGroup(8, 1, 1e12, 1e-6, 9e-6)
    assert group.tree_latency == pytest.approx(2 * 3 * 1e-6), "no network is crossed"
    assert RankGroup(16, 2, 1e12, 1e-6, 9e-6).tree_latency == pytest.approx(2 * 9e-6 + 2e-6)
