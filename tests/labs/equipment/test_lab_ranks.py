"""Ranks for lessons: forks that meet, whose answers and errors come home."""

import os

import pytest
import torch
import torch.distributed as dist

from stepladder.errors import LostRank, OutOfMemory
from stepladder.labs.equipment import lab_ranks as ranks
from stepladder.labs.equipment.lab_ranks import hushed, on_ranks
from stepladder.labs.equipment.rank_memory_limit import MemoryLimit


def test_every_rank_answers_in_order_with_tensors_of_its_own():
    def add(value):
        total = torch.full((3,), float(dist.get_rank() + value))
        dist.all_reduce(total)
        return dist.get_rank(), total

    found = on_ranks(add, 3, 1)
    assert [rank for rank, _ in found] == [0, 1, 2]
    assert all(torch.equal(total, torch.full((3,), 6.0)) for _, total in found)


def test_a_function_that_joins_by_itself_gets_its_place():
    def join(rank, num_ranks, meeting, word):
        dist.init_process_group("gloo", meeting, rank=rank, world_size=num_ranks)
        return word, dist.get_rank(), os.environ["WORLD_SIZE"]

    assert on_ranks(join, 2, "hello", join=False) == [("hello", 0, "2"), ("hello", 1, "2")]


def test_an_error_comes_home_with_its_lines():
    def fail():
        if dist.get_rank() == 1:
            raise KeyError("here")
        dist.barrier()

    with pytest.raises(KeyError, match="here") as raised:
        on_ranks(fail, 2)
    assert any(frame.line == 'raise KeyError("here")' for frame in raised.value.frames)


def test_a_rank_that_ends_is_named_though_others_fail_for_it():
    def vanish():
        if dist.get_rank() == 1:
            os._exit(9)
        dist.barrier()

    for num_ranks in (2, 4):
        with pytest.raises(
            LostRank, match=f"rank 1 of {num_ranks} ended by itself with exit code 9"
        ):
            on_ranks(vanish, num_ranks)


def test_a_rank_that_waits_for_one_that_is_done_is_named(monkeypatch):
    monkeypatch.setattr(ranks, "LEFT_ALONE_SECONDS", 0.5)

    def wait():
        if dist.get_rank() == 0:
            dist.barrier()

    with pytest.raises(LostRank, match="rank 0 of 2 still waits for something when rank 1 is done"):
        on_ranks(wait, 2)


def test_ranks_that_never_answer_are_given_up():
    def wait():
        dist.recv(torch.zeros(1), 1 - dist.get_rank())

    with pytest.raises(
        LostRank, match="rank 0 of 2 did not finish within 1 s. Every rank must call"
    ):
        on_ranks(wait, 2, timeout_seconds=1)


def test_memory_beyond_the_limit_fails_and_views_cost_nothing():
    with MemoryLimit(4096) as memory:
        first = torch.zeros(512)
        _ = first.view(2, 256), first[:10]
        assert memory.live_bytes == 2048
        del first, _
        assert memory.live_bytes == 0
        kept = torch.zeros(512)
        kept.untyped_storage().resize_(0)
        assert memory.live_bytes == 0
        with pytest.raises(OutOfMemory, match="made it 8 KiB of tensors on this rank.* hold 4"):
            torch.zeros(2048)
    assert memory.peak_bytes == 8192


def test_hushed_hides_what_is_written_past_python(capfd):
    with hushed():
        os.write(2, b"for experts")
    os.write(2, b"for all")
    assert capfd.readouterr().err == "for all"
