"""A rank that raises in a step does not leave the others waiting for it."""

from datetime import timedelta
from unittest.mock import patch

import pytest
import torch
from torch.distributed.distributed_c10d import _set_pg_timeout

from stepladder.errors import LostRank, ModelError
from stepladder.plan import Layout
from stepladder.world import join_world
from stepladder.world.ranks import hang_watchdog, shared_failure
from tests.ranks import run

REASON = "rank 1: left the step with ModelError: field: problem. Its own log says where."


def quick(grace):
    """Watchdogs that look often."""
    return (
        patch.object(hang_watchdog, "BEAT_SECONDS", 0.1),
        patch.object(shared_failure, "GRACE_SECONDS", grace),
    )


def start(grace):
    """Two ranks that have met; rank 1 has left its step with an error."""
    for change in quick(grace):
        change.start()
    world = join_world(Layout(replicate=2), "cpu", timeout_seconds=60)
    world.sum(torch.ones(1), "replicate")
    if world.place.rank == 1:
        with pytest.raises(ModelError), world.during_step():
            raise ModelError("field", "problem")
    return world


def one_stays():
    """What ends rank 0, which waits in a collective for rank 1."""
    world, said = start(0.2), []
    if world.place.rank == 1:
        world.notes.read("ended", 60)
        world.sum(torch.ones(1), "replicate")  # lets go of the other, which was not really ended
        return ""
    with (
        patch.object(hang_watchdog.os, "_exit", lambda code: world.notes.post("ended", str(code))),
        patch.object(hang_watchdog.sys.stderr, "write", said.append),
        world.during_step(),
    ):
        world.sum(torch.ones(1), "replicate")
    return said[0].strip()


def one_is_gone():
    """What rank 0 raises when its collective with rank 1 fails."""
    world = start(600)
    if world.place.rank == 1:
        return ""
    _set_pg_timeout(timedelta(seconds=1), world.group("replicate"))
    with pytest.raises(LostRank) as lost, world.during_step():
        world.sum(torch.ones(1), "replicate")
    return str(lost.value)


@pytest.mark.parametrize("how", [one_stays, one_is_gone])
def test_a_rank_that_waits_for_one_that_raised_ends_with_its_reason(how):
    said, _ = run(in_own_patches, 2, how, init=False)
    assert said == REASON


def in_own_patches(how):
    try:
        return how()
    finally:
        patch.stopall()


def all_raise():
    """Two steps, of which all ranks leave the first with an error of their own."""
    world = join_world(Layout(replicate=2), "cpu", timeout_seconds=60)
    with pytest.raises(ModelError), world.during_step():
        raise ModelError(f"rank {world.place.rank}", "problem")
    with world.during_step():
        total = world.sum(torch.ones(1), "replicate").item()
    return total, world.watchdog.failure.waits_in_vain()


def test_ranks_that_all_raise_go_on():
    assert run(all_raise, 2, init=False) == [(2.0, "")] * 2
