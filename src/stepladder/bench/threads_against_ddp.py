"""`nn.DataParallel` (one process, threads) against DistributedDataParallel (one process per rank).

`nn.DataParallel` keeps one process. Every step it copies the model to each device, cuts the batch,
runs a thread a device, and brings everything back to the first: the threads share one interpreter,
and the copies are paid again each step. DDP copies once and overlaps its sums with backward.

`nn.DataParallel` itself needs a GPU for each way; with fewer it would quietly run plain. So on
other machines the same arrangement is made here by hand, and the row says so: copies, cut, a thread
a copy, gradients brought together. It is kinder to threads than the original on a CPU, where
autograd would run all backward passes in one thread: each of these threads runs its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from stepladder.data import Batch
from stepladder.errors import PlanError
from stepladder.launch import Ranks
from stepladder.plan import Layout
from stepladder.world import join_world, pick_device, synchronize

from .workloads import make_workload

WARMUP = 3
LEARNING_RATE = 0.01
Step = Callable[[Batch], torch.Tensor]  # trains on a batch; its mean loss


@dataclass(frozen=True, slots=True)
class DataParallelWorkload:
    """What every way of running trains: the same weights on the same global batches."""

    model: str
    batch: int  # samples a step, over all ways
    sequence: int
    ways: int
    device: str = "auto"
    steps: int = 10

    def make(self) -> tuple[nn.Module, list[Batch]]:
        work = make_workload(self.model, batch=self.batch, sequence=self.sequence)
        torch.manual_seed(0)
        return work.make(), list(work.batches)


@dataclass(frozen=True, slots=True)
class DataParallelRow:
    """One way of running the same steps."""

    name: str
    processes: int
    step_ms: float  # median
    samples_per_second: float
    loss: float  # of the last step


def measure_data_parallel(pool: Ranks, trial: DataParallelWorkload) -> Iterator[DataParallelRow]:
    """One process alone, one process with threads, one process a rank."""
    if trial.batch % trial.ways:
        below = trial.batch - trial.batch % trial.ways
        near = " or ".join(str(size) for size in (below, below + trial.ways) if size)
        problem = f"{trial.batch} samples do not divide over {trial.ways} ranks"
        raise PlanError("batch", problem, f"Nearest that do: {near}.")
    yield row_of("one process", trial, pool.call(run_alone, trial, ranks=1))
    if enough_gpus(trial):
        yield row_of("nn.DataParallel", trial, pool.call(run_data_parallel, trial, ranks=1))
    else:
        name = f"{trial.ways} threads by hand, as nn.DataParallel does"
        yield row_of(name, trial, pool.call(run_threads, trial, ranks=1))
    yield row_of("DistributedDataParallel", trial, pool.call(run_ranks, trial, ranks=trial.ways))


def row_of(
    name: str, trial: DataParallelWorkload, answers: list[tuple[float, float]]
) -> DataParallelRow:
    seconds = max(seconds for seconds, _ in answers)
    return DataParallelRow(name, len(answers), seconds * 1e3, trial.batch / seconds, answers[0][1])


def enough_gpus(trial: DataParallelWorkload) -> bool:
    return pick_device(trial.device).type == "cuda" and torch.cuda.device_count() >= trial.ways


def run_alone(trial: DataParallelWorkload) -> tuple[float, float]:
    device = pick_device(trial.device)
    module, batches = trial.make()
    module.to(device)
    return timed_steps(whole_step(module, module), batches, device, trial.steps)


def run_data_parallel(trial: DataParallelWorkload) -> tuple[float, float]:
    device = pick_device("cuda:0")
    module, batches = trial.make()
    module.to(device)
    copies = nn.DataParallel(module, device_ids=list(range(trial.ways)))
    return timed_steps(whole_step(copies, module), batches, device, trial.steps)


def run_ranks(trial: DataParallelWorkload) -> tuple[float, float]:
    """On one rank of DDP: its rows of each batch."""
    world = join_world(Layout(replicate=trial.ways), trial.device)
    module, batches = trial.make()
    module.to(world.device)
    replica = DistributedDataParallel(module)
    rows = trial.batch // trial.ways
    mine = slice(world.data_index * rows, (world.data_index + 1) * rows)
    shares = [batch.rows(mine) for batch in batches]
    step = whole_step(replica, module)
    seconds, loss = timed_steps(step, shares, world.device, trial.steps)
    total = torch.tensor(loss, device=world.device)
    dist.all_reduce(total)
    world.close()
    return seconds, total.item() / trial.ways


def run_threads(trial: DataParallelWorkload) -> tuple[float, float]:
    device = pick_device(trial.device)
    module, batches = trial.make()
    module.to(device)
    each = max(1, torch.get_num_threads() // trial.ways)
    with ThreadPoolExecutor(
        trial.ways, initializer=torch.set_num_threads, initargs=(each,)
    ) as pool:
        return timed_steps(threaded_step(module, trial.ways, pool), batches, device, trial.steps)


def timed_steps(
    step: Step, batches: list[Batch], device: torch.device, steps: int
) -> tuple[float, float]:
    """Median seconds of a step after warm-up, and the last step's loss."""
    near = [batch.to(device) for batch in batches]
    seconds, loss = [], torch.zeros(())
    for index in range(WARMUP + steps):
        synchronize(device)
        began = time.perf_counter()
        loss = step(near[index % len(near)])
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[WARMUP:]), loss.item()


def mean_loss(call: nn.Module, batch: Batch) -> torch.Tensor:
    logits = call(batch.inputs)
    return cross_entropy(logits.flatten(0, -2), batch.targets.flatten())


def whole_step(call: nn.Module, module: nn.Module) -> Step:
    optimizer = torch.optim.SGD(module.parameters(), LEARNING_RATE)

    def step(batch: Batch) -> torch.Tensor:
        optimizer.zero_grad()
        loss = mean_loss(call, batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def threaded_step(module: nn.Module, ways: int, pool: ThreadPoolExecutor) -> Step:
    optimizer = torch.optim.SGD(module.parameters(), LEARNING_RATE)
    copies = [deepcopy(module) for _ in range(ways)]

    def backward(copy: nn.Module, batch: Batch) -> torch.Tensor:
        loss = mean_loss(copy, batch)
        loss.backward()
        return loss.detach()

    def step(batch: Batch) -> torch.Tensor:
        replicate(module, copies)
        rows = batch.num_rows // ways
        shares = [batch.rows(slice(index * rows, (index + 1) * rows)) for index in range(ways)]
        losses = list(pool.map(backward, copies, shares))
        average_gradients(module, copies)
        optimizer.step()
        return torch.stack(losses).mean()

    return step


@torch.no_grad()
def replicate(module: nn.Module, copies: list[nn.Module]) -> None:
    """Give every copy the module's values, anew each step."""
    for copy in copies:
        for there, here in zip(tensors(copy), tensors(module)):
            there.copy_(here)
            there.grad = None


@torch.no_grad()
def average_gradients(module: nn.Module, copies: list[nn.Module]) -> None:
    """The mean of the copies' gradients, on the module."""
    for here, *there in zip(module.parameters(), *(copy.parameters() for copy in copies)):
        gradients = [parameter.grad for parameter in there if parameter.grad is not None]
        here.grad = torch.stack(gradients).sum(0) / len(copies) if gradients else None


def tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]
