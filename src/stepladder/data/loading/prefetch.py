"""Prefetching: workers make the next batches ahead of time, and copies to the device overlap steps.

Workers take steps in order and their results are returned in order, so the number of workers
changes when a batch is ready and never its contents. The copy of the next batch to a CUDA device
starts before the current batch is returned, so it overlaps the step.

The threads are daemons, since a read that hangs on a lost file system must not keep a failed run
alive. Closing, garbage collection and interpreter exit all stop them, and wait a few seconds for
reads that do end.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any

import torch

from stepladder.data.batch import Batch
from stepladder.errors import DataError

from .device_copy import DeviceCopier
from .worker_processes import run_in_processes
from .workers import Workers

DEPTH = 4
ONE_THREAD = Workers(1)
JOIN_SECONDS = 5.0


class Prefetcher(Iterator[Batch]):
    """Batches of `steps` in order, made ahead of time."""

    def __init__(
        self,
        make: Callable[[int], Batch],
        steps: range,
        *,
        workers: Workers = ONE_THREAD,
        depth: int = DEPTH,
        device: torch.device | str | None = None,
        patience_seconds: float = 600.0,
    ) -> None:
        if depth < 1:
            raise DataError("depth", f"{depth} batches ahead is not ahead", "Use at least 1.")
        self.waited_seconds = 0.0  # time the step waited for its batch
        self._steps, self._patience_seconds = iter(steps), patience_seconds
        self._depth, self._copier = depth, DeviceCopier(device)
        self._ahead: tuple[Batch, Any] | None = None
        self._pending: deque[tuple[int, Future[Batch]]] = deque()
        self._make = make
        if workers.processes:
            make = run_in_processes(
                make, steps, count=workers.count, depth=depth, forked=workers.forked
            )
        self._tasks: SimpleQueue = SimpleQueue()
        prepare = self._copier.prepare
        threads = [
            Thread(
                target=_serve,
                args=(self._tasks, make, prepare),
                name="stepladder-read",
                daemon=True,
            )
            for _ in range(1 if workers.processes else workers.count)
        ]
        self._threads = threads
        self._dismiss = weakref.finalize(self, _dismiss, self._tasks, self._pending, threads, make)
        for thread in threads:
            thread.start()

    def __next__(self) -> Batch:
        began = time.perf_counter()
        try:
            batch = self._copier.finish_copy(self._ahead or self._copier.start_copy(self._take()))
            self.waited_seconds = time.perf_counter() - began
            self._ahead = self._copier.start_copy(self._take()) if self._ready() else None
        except BaseException:  # the end, an error or Ctrl-C: stop the workers
            self.close()
            raise
        return batch

    def close(self) -> None:
        """Stop the workers; closing twice is allowed."""
        self._dismiss()
        self._steps = iter(())

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _take(self) -> Batch:
        """The next batch in order, after submitting the steps behind it."""
        if not self._threads:
            return self._make(next(self._steps))
        self._submit_more()
        if not self._pending:
            raise StopIteration
        step, future = self._pending.popleft()
        try:
            batch = future.result(self._patience_seconds)
        except NotYet:
            raise self._timed_out(step) from None
        self._submit_more()
        return batch

    def _submit_more(self) -> None:
        while len(self._pending) < self._depth and (step := next(self._steps, None)) is not None:
            future: Future[Batch] = Future()
            self._pending.append((step, future))
            self._tasks.put((future, step))

    def _ready(self) -> bool:
        """Whether the next batch can be copied now, without waiting or raising its error early."""
        if not self._copier.copies or not self._pending:
            return False
        future = self._pending[0][1]
        return future.done() and future.exception() is None

    def _timed_out(self, step: int) -> DataError:
        describe = getattr(self._make, "reading_now", None)
        reading = f", reading {describe()}" if describe else ""
        return DataError(
            "data",
            f"step {step} was not ready after {self._patience_seconds:.0f} s{reading}",
            "Check the file system, or wait longer: ReadPolicy(patience_seconds=...).",
        )


def _serve(
    tasks: SimpleQueue, make: Callable[[int], Batch], prepare: Callable[[Batch], Batch]
) -> None:
    """Make batches until told to stop by None."""
    while (task := tasks.get()) is not None:
        future, step = task
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(prepare(make(step)))
        except BaseException as error:
            future.set_exception(error)


def _dismiss(
    tasks: SimpleQueue, pending: deque[tuple[int, Future[Batch]]], threads: list[Thread], make: Any
) -> None:
    for _, future in pending:
        future.cancel()
    pending.clear()
    for _ in threads:
        tasks.put(None)
    deadline = time.monotonic() + JOIN_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if hasattr(make, "close"):
        make.close()
