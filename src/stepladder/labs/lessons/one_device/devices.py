"""GPU basics: detection, placement, moving, mismatches, fallback and correct timing.

A device is found by asking, in the order of what you would like; a CPU is always there to fall back
on. A module's `to` moves it in place; a tensor's `to` returns another tensor and leaves the old one
where it was. Batches come as tensors in tuples in dicts, and all of them must move.

A GPU works on its own: a call only queues the work and returns at once. So a clock around a call
times the queueing, and perhaps the end of somebody else's work.

Claim: a clock around a queued product says it took next to no time; one that waits says the truth.
The same four functions work with a GPU and without one, and stepladder.world.pick_device falls back
as yours does.

Predict: How many GFLOP/s does this machine reach in a product of 1,024 × 1,024 matrices in float32?
[GFLOP/s; size = 1024]

Often wrong:
- the clock is stopped before the device has finished
- the clock is started while earlier work still runs
- tensors inside lists stay behind
- the tensor that `to` returns is thrown away
- a GPU is asked for by number that is not there
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


def best_device(wanted: int, num_cuda: int) -> str:
    """The wanted GPU of so many, the first where that one is not there, else the CPU."""
    # >>> The name of the best device there is.
    # ??? Names are 'cuda:0', 'cuda:1' and so on, and 'cpu'. Which numbers are there when num_cuda
    # ???   is 2?
    # ??? There are three cases: no GPU at all, the wanted one is there, only others are.
    if num_cuda == 0:
        return "cpu"
    return f"cuda:{wanted}" if wanted < num_cuda else "cuda:0"
    # <<< return f"cuda:{wanted}"


def move(batch: Any, device: torch.device) -> Any:
    """A batch with every tensor in it on the device: tensors, and lists, tuples, dicts of them."""
    # >>> Every tensor on the device, wherever in the batch it is; all else as it was.
    # ??? What should move do with a list of things that may be lists themselves?
    # ??? Tensor.to leaves the old tensor where it is. What does it give back?
    # ??? type(batch)(...) makes a list of a list's items, and a tuple of a tuple's.
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(move(value, device) for value in batch)
    return batch
    # <<< return batch.to(device) if isinstance(batch, Tensor) else batch


def strays(model: nn.Module, device: torch.device) -> list[str]:
    """Names of the parameters and buffers that are not on the device."""
    # >>> The names of all tensors of the model that are elsewhere.
    # ??? A module has two kinds of tensors that go with it. BatchNorm's running mean is of the
    # ???   second kind.
    # ??? named_parameters and named_buffers give names with tensors, and a tensor knows its device.
    named = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, tensor in named if tensor.device != device]
    # <<< return []


class Queue:
    """What a GPU's stream is: calls return at once and are done in order; on a CPU, by a thread."""

    def __init__(self) -> None:
        self.worker = ThreadPoolExecutor(max_workers=1)
        self.last: Future[Any] | None = None

    def launch(self, work: Callable[[], Any]) -> None:
        self.last = self.worker.submit(work)

    def synchronize(self) -> None:
        if self.last is not None:
            self.last.result()


class Stream(Queue):
    """The same on a real GPU, whose calls return at once by themselves."""

    def launch(self, work: Callable[[], Any]) -> None:
        work()

    def synchronize(self) -> None:
        torch.cuda.synchronize()


def timed(queue: Queue, work: Callable[[], Any], clock: Callable[[], float]) -> float:
    """The seconds that the queue needs for the work, and for nothing else."""
    # >>> Time this work from its start to its end, and nothing else.
    # ??? launch returns at once. How much of the work has the clock seen when it is read right
    # ???   after?
    # ??? Something may still be running when you come. In whose time does it end?
    # ??? queue.synchronize() waits until the queue is empty. It may be called more than once.
    queue.synchronize()
    start = clock()
    queue.launch(work)
    queue.synchronize()
    # <<< start = clock()
    # <<< queue.launch(work)
    return clock() - start


def measure() -> list[dict[str, Any]]:
    device = torch.device(best_device(0, torch.cuda.device_count()))
    queue = Stream() if device.type == "cuda" else Queue()
    rows = []
    for size in (256, 512, 1024):
        square = move(torch.randn(size, size), device)
        work = partial(torch.matmul, square, square)
        timed(queue, work, time.perf_counter)
        start = time.perf_counter()
        queue.launch(work)
        naive = time.perf_counter() - start
        true = timed(queue, work, time.perf_counter)
        row = {"device": str(device), "size": size, "ms without waiting": 1e3 * naive}
        rows.append({**row, "ms": 1e3 * true, "GFLOP/s": 2 * size**3 / true / 1e9})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
