import gc
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from stepladder.data import Batch, Prefetcher, Workers
from stepladder.errors import DataError
from tests.soak import soak_after


def reading():
    return {thread for thread in threading.enumerate() if thread.name == "stepladder-read"}


@pytest.fixture(autouse=True)
def readers():
    """Threads of this test that still read, once they had their time to end; others' may too."""
    before = reading()

    def left():
        for thread in reading() - before:
            thread.join(60)
        return reading() - before

    return left


def make(step):
    time.sleep(0.002 * ((step * 7) % 5))  # later steps are often ready first
    return Batch.of(torch.tensor([step]), position=step, size=1)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_batches_come_in_order_for_any_number_of_workers(count, readers):
    feed = Prefetcher(make, range(30), workers=Workers(count))
    assert [batch.position for batch in feed] == list(range(30))
    assert not readers()


def test_batches_are_made_ahead_and_no_further_than_the_depth():
    made = []

    def note(step):
        made.append(step)
        return Batch.of(torch.tensor([step]), position=step, size=1)

    with Prefetcher(note, range(100), depth=3) as feed:
        next(feed)
        deadline = time.monotonic() + 60
        while len(made) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert made == [0, 1, 2, 3]


def test_reading_overlaps_the_step(monkeypatch):
    read, go_on = threading.Event(), threading.Event()
    clock = SimpleNamespace(now=0.0, monotonic=time.monotonic, perf_counter=lambda: clock.now)
    monkeypatch.setattr(
        "stepladder.data.loading.prefetch.time", clock
    )  # on which only reading takes time

    def slow(step):
        if step == 2:
            read.set()  # so 1 was read, while nobody asked for it
            assert go_on.wait(60)
        clock.now += 10
        return Batch.of(torch.tensor([step]), position=step, size=1)

    with Prefetcher(slow, range(10), depth=2) as feed:
        next(feed)
        assert feed.waited_seconds >= 10
        assert read.wait(60)
        assert next(feed).position == 1
        assert feed.waited_seconds == 0
        go_on.set()


@pytest.mark.parametrize("count", [0, 3])
def test_an_error_arrives_in_its_turn_and_leaves_no_thread(count, readers):
    def fail(step):
        if step == 2:
            raise DataError("sample 2 (a.bin)", "cannot be read")
        return make(step)

    feed = Prefetcher(fail, range(9), workers=Workers(count))
    assert [next(feed).position, next(feed).position] == [0, 1]
    with pytest.raises(DataError, match=r"sample 2 \(a.bin\): cannot be read"):
        next(feed)
    assert not readers()
    with pytest.raises(StopIteration):
        next(feed)


def test_closing_twice_or_forgetting_leaves_no_thread(readers):
    feed = Prefetcher(make, range(10**9), workers=Workers(3))
    next(feed)
    feed.close()
    feed.close()
    assert not readers()
    forgotten = Prefetcher(make, range(10**9), workers=Workers(3))
    next(forgotten)
    del forgotten
    gc.collect()
    assert not readers()


def test_a_batch_that_never_comes_ends_the_wait_and_names_what_is_read(monkeypatch):
    monkeypatch.setattr("stepladder.data.loading.prefetch.JOIN_SECONDS", 0.1)
    freed = threading.Event()

    class Stuck:
        def __call__(self, step):
            freed.wait()

        def reading_now(self):
            return "sample 7 (lost.bin)"

    began = time.monotonic()
    feed = Prefetcher(Stuck(), range(9), patience_seconds=0.1)
    with pytest.raises(
        DataError, match=r"data: step 0 was not ready after 0 s, reading sample 7 \(lost"
    ):
        next(feed)
    assert time.monotonic() - began < 120
    freed.set()


SCRIPT = """
import os, signal, threading, time, torch
from stepladder.data import Batch, Prefetcher, Workers
def make(step):
    if step > 5: {then}
    return Batch.of(torch.tensor([step]), position=step, size=1)
feed = Prefetcher(make, range(10**9), workers=Workers(2))
for _ in range(3): next(feed)
{last}
"""
INTERRUPT = (
    "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\nfor batch in feed: pass"
)


@pytest.mark.parametrize(
    ("then", "last", "code"),
    soak_after(
        [
            ("time.sleep(0.01)", "", 0),
            ("time.sleep(0.5)", INTERRUPT, -2),
            ("time.sleep(0.01)", "raise SystemExit(3)", 3),
        ],
        gate=2,
    ),
    ids=["left open", "ctrl-c", "exit"],
)
def test_a_script_ends_at_once_however_it_ends(then, last, code):
    script = SCRIPT.format(then=then, last=last)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=200, text=True
    )
    assert done.returncode == code, done.stderr
    assert ("KeyboardInterrupt" in done.stderr) == (code == -2)


def test_no_depth_is_refused():
    with pytest.raises(DataError, match=r"depth: 0 batches ahead is not ahead. Use at least 1"):
        Prefetcher(make, range(3), depth=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("count", [0, 3])
def test_batches_arrive_whole_on_the_device(count):
    def big(step):
        values = torch.full((64, 4096), step)
        return Batch.of((values, values + 1), position=step, size=64)

    with Prefetcher(big, range(200), workers=Workers(count), device="cuda") as feed:
        for step, batch in enumerate(feed):
            assert batch.inputs.is_cuda
            busy = torch.randn(1024, 1024, device="cuda")
            for _ in range(5):
                busy = busy @ busy
            assert (batch.inputs == step).all() and (batch.targets == step + 1).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_workers_pin_where_a_device_is_in_use():
    torch.cuda.init()
    with Prefetcher(make, range(3)) as feed:
        assert next(feed).inputs.is_pinned()
