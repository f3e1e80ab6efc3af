"""Memory is read without waiting, and in bytes."""

import gc
import mmap
import os
import pickle

import psutil
import pytest
import torch

from stepladder.launch import Ranks
from stepladder.world import device_memory_bytes, peak_memory_bytes
from stepladder.world.machine.process_memory import memory_bytes_in_use, reset_peak

CPU = torch.device("cpu")


def test_a_process_holds_less_than_the_machine_has():
    assert 2**20 < peak_memory_bytes(CPU) < device_memory_bytes(CPU)


def test_the_machine_has_what_the_kernel_says():
    with open("/proc/meminfo") as lines:
        total_kib = int(next(lines).split()[1])
    assert device_memory_bytes(CPU) == total_kib * 1024


def test_the_peak_stays_when_memory_is_given_back_until_it_is_started_anew():
    gc.collect()  # what other tests left must not be given back in between
    reset_peak(CPU)
    before = peak_memory_bytes(CPU)
    # Pages of our own: the allocator may still hold some that another test gave back to it.
    pages = mmap.mmap(-1, 2**28)
    torch.frombuffer(pages, dtype=torch.uint8).fill_(1)
    pages.close()
    assert peak_memory_bytes(CPU) - before == pytest.approx(2**28, rel=0.015)
    reset_peak(CPU)
    assert peak_memory_bytes(CPU) - before < 2**26


def peak() -> int:
    return peak_memory_bytes(CPU)


def test_a_process_started_by_a_large_one_does_not_inherit_its_peak(fresh_python):
    held = torch.ones(2**30, dtype=torch.uint8)
    with Ranks(1) as ranks:
        assert ranks.call(peak)[0] < held.numel()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpus_peak_is_its_tensors_and_can_be_started_anew():
    device = torch.device("cuda", 0)
    reset_peak(device)
    before = peak_memory_bytes(device)
    held = torch.ones(2**24, dtype=torch.uint8, device=device)
    assert peak_memory_bytes(device) - before == 2**24
    del held
    reset_peak(device)
    assert peak_memory_bytes(device) == before
    assert peak_memory_bytes(device) < device_memory_bytes(device)


def test_what_is_held_is_the_kernels_count_of_this_process_and_of_no_other():
    """A forked one too: what the handle was opened for is its parent."""

    def counted():
        return memory_bytes_in_use(CPU) / psutil.Process().memory_info().rss

    assert counted() == pytest.approx(1, rel=0.05)
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            kept = mmap.mmap(-1, 2**28)
            kept.write(bytes(2**28))  # so that it holds more than its parent
            os.write(writing, pickle.dumps(counted()))
        finally:
            os._exit(0)  # whatever came: the session is its parent's
    os.waitpid(child, 0)
    assert pickle.loads(os.read(reading, 1000)) == pytest.approx(1, rel=0.05)
