"""A leak planted in a run is said once, with who holds it."""

import mmap

import torch

from stepladder.job.monitoring.memory_watch import MemoryWatch
from stepladder.record import Report


def report(step, length=0, memory=0):
    return Report(step, 1.0, 1.0, 0.1, 8, 0.1, memory, 80.0, length=length)


def fresh():
    """4 MiB straight from the kernel: what earlier tests gave back would hide that memory grows."""
    return torch.frombuffer(mmap.mmap(-1, 2**22), dtype=torch.float32).fill_(1.0)


def test_a_leak_is_named_once_with_its_holder():
    watch, said = MemoryWatch(torch.device("cpu"), apart_seconds=0), []
    weight = torch.ones(1, requires_grad=True)
    kept = [weight * torch.ones(2**24)]  # larger than what any other test may have left alive
    for step in range(60):
        kept.append(weight * fresh())  # every step; its graph keeps both
        said += watch.add(report(step))
    assert len([line for line in said if "the floor rose" in line]) == 1
    assert any("held by a list" in line for line in said)


def test_memory_is_not_read_more_often_than_a_leak_needs():
    watch = MemoryWatch(torch.device("cpu"), apart_seconds=1000)
    for step in range(5):
        list(watch.add(report(step)))
    assert watch.leaks.seen == 1


def test_a_steady_run_is_left_in_peace():
    watch = MemoryWatch(torch.device("cpu"), apart_seconds=0)
    assert [line for step in range(60) for line in watch.add(report(step))] == []


def test_one_length_throughout_is_not_worth_a_line():
    watch = MemoryWatch(torch.device("cpu"))
    for step in range(3):
        list(watch.add(report(step, 16, memory=2**20)))
    assert watch.summary() == {}


def test_the_longest_sequence_is_said_at_the_end():
    watch = MemoryWatch(torch.device("cpu"))
    for step, length in enumerate([16, 64, 32]):
        list(watch.add(report(step, length, memory=2**20 * length)))
    assert "64 at step 1" in watch.summary()["lengths"]
