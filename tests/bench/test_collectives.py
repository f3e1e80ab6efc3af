"""Collectives: what a plan uses, what the kernel sees sent, and that the line is the planner's."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from stepladder.bench import CollectiveRow, all_collectives, fit_line, fit_link
from stepladder.bench.collectives import (
    COLLECTIVES,
    CollectiveUse,
    GroupMember,
    check_messages,
    collectives_of_plan,
    time_collective,
)
from stepladder.errors import WorldError
from stepladder.hardware import Cluster
from stepladder.measure import sent_since, wire_bytes
from stepladder.plan import Layout, Plan
from stepladder.planner.time.collective_time import network_of
from stepladder.record import Calibration
from stepladder.world import join_world
from tests.ranks import run

SIZES = [2**power for power in range(10, 28, 2)]


@pytest.mark.parametrize(
    ("plan", "used"),
    [
        ("fp32", {}),
        ("ddp replicate=2", {"all_reduce": ["replicate"]}),
        (
            "zero1 shard=2",
            {"all_reduce": ["shard"], "all_gather": ["shard"], "broadcast": ["shard"]},
        ),
        ("zero3 shard=2", {"all_gather": ["shard"], "reduce_scatter": ["shard"]}),
        (
            "zero2 replicate=2 shard=2",
            {"all_gather": ["shard"], "reduce_scatter": ["shard"], "all_reduce": ["replicate"]},
        ),
        ("tensor=2", {"all_gather": ["tensor"], "reduce_scatter": ["tensor"]}),
        ("pipeline=2", {"send_receive": ["pipeline"]}),
        (
            "zero3 shard=2 context=2",
            {
                "all_gather": ["shard context", "context"],
                "reduce_scatter": ["shard context", "context"],
            },
        ),
    ],
)
def test_a_plan_names_the_collectives_and_axes_it_uses(plan, used):
    parsed = Plan.parse(plan)
    found: dict[str, list[str]] = {}
    for use in collectives_of_plan(parsed.settle(parsed.layout.num_ranks)):
        found.setdefault(use.collective, []).append(" ".join(use.axes))
    assert found == used


def sent(ways: int, size: int) -> dict[str, int]:
    """Bytes the kernel sent for one call of each collective."""
    world = join_world(Layout(replicate=ways), "cpu")
    seat = GroupMember(world.group("replicate"), world.device)
    found = {}
    for name, kind in COLLECTIVES.items():
        call = kind.start(seat, size // 4)
        call()
        dist.barrier()
        before = wire_bytes()
        call()
        dist.barrier()
        found[name] = sent_since(before)
        dist.barrier()  # nobody leaves before all have counted
    world.close()
    return found


@pytest.mark.soak
def test_each_rank_sends_the_share_that_bus_bandwidth_counts():
    ways, size = 3, 3 * 2**18
    by_rank = run(sent, ways, ways, size, init=False)
    for name in ("all_reduce", "all_gather", "all_to_all", "send_receive"):
        share = COLLECTIVES[name].share(ways) * size
        for measured in by_rank:
            assert share <= measured[name] < share + 8192, name
    assert sum(each["broadcast"] for each in by_rank) == pytest.approx(2 * size, rel=0.02)
    # gloo sends more than a ring would need
    assert all(each["reduce_scatter"] >= 2 / 3 * size for each in by_rank)


def test_a_size_is_rounded_up_to_what_the_ranks_divide_and_axes_are_groups_of_their_own():
    layout = Layout(shard=2, tensor=2)
    for use in (
        CollectiveUse("all_gather", ("tensor",)),
        CollectiveUse("reduce_scatter", ("shard", "tensor")),
    ):
        ways = 2 ** len(use.axes)
        for answer in run(time_collective, 4, use, layout, (1024, 1030), "cpu", 1, init=False):
            sizes = (1024, 1040 if ways == 4 else 1032)
            assert [row[:2] for row in answer] == [(ways, size) for size in sizes]
            assert all(0 < seconds < 60 for _, _, seconds in answer)


def refusal(kind: str) -> str:
    try:
        check_messages(torch.device(kind))
    except WorldError as refused:
        return str(refused)
    return ""


def test_messages_between_gpus_over_gloo_are_refused_before_they_crash():
    assert run(refusal, 1, "cpu") == [""]
    (said,) = run(refusal, 1, "cuda")
    assert said.startswith("device: gloo cannot send messages from one rank's GPU memory")


def planner_rows(ways: int, *, latency: float, rate: float) -> list[CollectiveRow]:
    """What the planner forecasts with this link measured."""
    found = Calibration(inside_bytes_per_second=rate, inside_latency_seconds=latency)
    network = network_of(Cluster.parse("8 x H100-80GB"), found)
    group = network.group(Layout(tensor=ways), "tensor")
    times = {"all_gather": group.gather, "reduce_scatter": group.gather, "send_receive": group.send}
    if ways == 2:  # of more ranks the planner may reduce along a tree
        times["all_reduce"] = group.all_reduce
    return [
        CollectiveRow(name, "tensor", ways, size, seconds(size))
        for name, seconds in times.items()
        for size in SIZES
    ]


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_the_line_through_the_planners_own_times_is_the_planners_link(ways):
    rows = planner_rows(ways, latency=2e-4, rate=1.3e9)
    link = fit_link(rows)
    assert link.latency_seconds == pytest.approx(2e-4, rel=1e-6)
    assert link.bytes_per_second == pytest.approx(1.3e9, rel=1e-6)
    assert link.error < 1e-9
    for name in {row.collective for row in rows}:
        line = fit_line([row for row in rows if row.collective == name])
        assert line.latency_seconds == pytest.approx(2e-4, rel=1e-6), name


def test_one_slow_small_message_moves_the_latency_and_not_the_rate():
    rows = [
        row for row in planner_rows(2, latency=1e-4, rate=1e9) if row.collective == "all_gather"
    ]
    odd = [replace(rows[0], seconds=2 * rows[0].seconds), *rows[1:]]
    line = fit_line(odd)
    assert line.latency_seconds > 1.02e-4
    assert line.bytes_per_second == pytest.approx(1e9, rel=0.05)


def test_collectives_no_forecast_uses_do_not_bend_the_link():
    rows = planner_rows(2, latency=1e-4, rate=1e9)
    foreign = [CollectiveRow("broadcast", "all", 2, size, 1.0) for size in SIZES]
    assert fit_link([*rows, *foreign]).latency_seconds == pytest.approx(1e-4, rel=1e-6)


def test_what_cannot_tell_latency_from_rate_has_no_line():
    one = planner_rows(2, latency=1e-4, rate=1e9)[:1]
    assert fit_line([]) is None and fit_line(one) is None and fit_line(one * 3) is None
    faster = [CollectiveRow("all_gather", "all", 2, size, 1 / size) for size in SIZES]
    assert fit_line(faster) is None, "larger messages that take less time are no line"


def test_a_line_has_no_negative_latency():
    steep = [CollectiveRow("all_gather", "all", 2, size, (size / 1e6) ** 1.3) for size in SIZES]
    assert fit_line(steep).latency_seconds == 0


def test_bandwidths_are_counted_as_everybody_counts_them():
    row = CollectiveRow("all_reduce", "all", 4, 4_000_000, 0.001)
    assert row.bytes_per_second == 4e9 and row.bus_bytes_per_second == 6e9
    assert replace(row, collective="all_gather").bus_bytes_per_second == 3e9
    assert replace(row, collective="broadcast").bus_bytes_per_second == 4e9


def test_without_a_plan_everything_is_measured_over_all_ranks():
    assert [use.collective for use in all_collectives()] == list(COLLECTIVES)
