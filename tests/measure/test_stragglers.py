"""The rank that others wait for is named, wherever it sleeps, and nobody else."""

import time

import pytest
import torch
import torch.distributed as dist

import stepladder as sl
from stepladder.measure.stragglers import (
    FORGIVEN,
    IN_A_ROW,
    RankTimeExchange,
    RankTimes,
    StragglerWatch,
)
from tests.ranks import run as run_ranks

SLEEP = 0.12
REPORTS = IN_A_ROW + 1


def watch_rank(plan, moment):
    """On one rank: what rank 0 read, and the sentences."""
    run = sl.climb(
        sl.build("gpt-tiny", sequence=16), loss="cross_entropy", optimizer="sgd lr=0.1", plan=plan
    )
    sleeps = run.world.place.rank == 1
    if sleeps and moment == "forward":
        run.module.register_forward_pre_hook(lambda *_: time.sleep(SLEEP))
    if sleeps and moment == "optimizer":
        run.optimizer.register_step_pre_hook(lambda *_: time.sleep(SLEEP))
    tokens = torch.randint(0, 256, (2, 16))
    run.step((tokens, tokens), rows="rank")
    plain = dist.Work.wait
    seen, said, watch = [], [], StragglerWatch()
    called = run.climbed.forward_backward.gradient_sync.module
    with RankTimeExchange(run.world, called, run.index) as notes:
        run.clock.restart(run.index)
        for _ in range(REPORTS):
            for _ in range(2):
                if sleeps and moment == "data":
                    time.sleep(SLEEP)
                report = run.step((tokens, tokens), rows="rank")
            if times := notes.leave(report.read()):
                seen.append(times)
                said += watch.add(times)
    assert dist.Work.wait is plain
    return seen, said


@pytest.mark.soak
@pytest.mark.parametrize(
    ("plan", "moment"),
    [
        ("fp32 ddp replicate=2", "forward"),
        ("fp32 ddp replicate=2", "data"),
        ("fp32 ddp replicate=2", "optimizer"),
        ("fp32 zero3 shard=2", "forward"),
        ("fp32 zero1 shard=2", "optimizer"),
    ],
)
def test_a_rank_that_sleeps_is_named_and_its_time_is_its_own(plan, moment):
    (seen, said), (nothing, _) = run_ranks(watch_rank, 2, plan, moment)
    assert nothing == [], "only rank 0 reads"
    assert len(seen) == REPORTS - 1
    assert len(said) == 1 and "rank 1 is" in said[0], said
    fast, slow = (min(own) for own in zip(*(times.own_seconds for times in seen)))
    assert slow - fast == pytest.approx(SLEEP, rel=0.5)  # the least: a busy machine adds to others
    for times in seen:
        assert times.own_seconds[0] + times.wait_seconds[0] == pytest.approx(times.step_seconds)


def times(*own, step=0):
    ones = tuple(0 for _ in own)
    return RankTimes(step, 1.0, tuple(own), ones, ones)


def test_a_straggler_is_named_once_and_again_after_it_long_recovered():
    watch = StragglerWatch()
    said = [watch.add(times(0.5, 0.5, 0.9)) for _ in range(IN_A_ROW + 2)]
    assert [len(texts) for texts in said] == [*[0] * (IN_A_ROW - 1), 1, 0, 0]
    (named,) = said[IN_A_ROW - 1]
    assert named.endswith(
        "rank 2 is 1.8 × slower than the median, 400 ms a step outside collectives"
    )
    for reports, names in ((IN_A_ROW, 0), (FORGIVEN + IN_A_ROW, 1)):
        for _ in range(reports):
            assert watch.add(times(0.5, 0.5, 0.5)) == []
        again = sum(len(watch.add(times(0.5, 0.5, 0.9))) for _ in range(IN_A_ROW))
        assert again == names, f"after {reports} reports"


def test_a_single_slow_report_names_nobody():
    watch = StragglerWatch()
    for own in ([0.5, 0.5], [0.5, 0.9], [0.5, 0.5], [0.9, 0.5], [0.5, 0.5], [0.9, 0.5]):
        assert watch.add(times(*own)) == []


def test_what_the_journal_keeps():
    assert times(0.5, 0.6, step=7).to_dict() == {
        "step": 7, "own_seconds": [0.5, 0.6], "wait_seconds": [0, 0], "memory_bytes": [0, 0]
    }  # fmt: skip
