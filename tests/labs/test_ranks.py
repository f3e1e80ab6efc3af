"""Ranks of a lesson: real processes that meet, and whose errors come home."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from stepladder.errors import LostRank
from stepladder.labs.grade import own_lines
from stepladder.labs.ranks import on_ranks

pytestmark = pytest.mark.xdist_group("ranks")


def test_ranks_meet_and_results_come_in_their_order():
    base = 10  # a closure: nothing is pickled on the way out

    def add_up() -> tuple[int, float]:
        total = torch.tensor(float(base + dist.get_rank()))
        dist.all_reduce(total)
        return dist.get_rank(), total.item()

    assert on_ranks(add_up, 2) == [(0, 21.0), (1, 21.0)]


def test_a_ranks_error_comes_home_with_its_lines():
    def fail() -> None:
        if dist.get_rank() == 1:
            raise ValueError("rank 1 had enough")

    with pytest.raises(ValueError, match="rank 1 had enough") as caught:
        on_ranks(fail, 2)
    assert any('raise ValueError("rank 1' in line for line in own_lines(caught.value, __file__))


def test_a_rank_that_ends_is_named():
    def leave() -> None:
        if dist.get_rank() == 1:
            os._exit(0)
        time.sleep(30)

    with pytest.raises(LostRank, match="rank 1 ended without a result"):
        on_ranks(leave, 2)


def test_ranks_that_wait_for_ever_are_said_to():
    def wait() -> None:
        if dist.get_rank() == 0:
            time.sleep(60)

    with pytest.raises(LostRank, match="1 of 2 ranks did not answer in 2 s"):
        on_ranks(wait, 2, timeout_seconds=2)
