"""Gradient compression: DDP's step time with each compression, over links of several speeds.

A slow link is a real one: two ranks in two network namespaces, with a cable between them whose
bandwidth the kernel limits. Without the right to make one, those rows say so.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from stepladder.errors import WorldError
from stepladder.measure import SlowLink
from stepladder.train import climb
from stepladder.world import Place

from .workloads import make_workload

KINDS = ("none", "bf16", "fp16", "powersgd:4")
LINKS = {"unlimited": None, "1 Gbit/s": "1gbit", "100 Mbit/s": "100mbit"}  # as `tc` writes them
PORT = "29477"  # in a namespace of one's own every port is free
WARMUP = 3
LIMIT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class CompressionWorkload:
    """What both ranks train, under one compression after the other."""

    model: str
    batch: int  # samples of one rank
    sequence: int
    steps: int


@dataclass(frozen=True, slots=True)
class CompressionRow:
    link: str
    compress: str
    step_ms: float | None = None
    against_none: float | None = None  # times faster
    loss: float | None = None  # of the last step
    problem: str = ""


def measure_compression(
    model: str, *, batch: int, sequence: int, steps: int
) -> Iterator[CompressionRow]:
    """One row a link and compression."""
    for link, rate in LINKS.items():
        try:
            with SlowLink(rate) as cable:
                found = run_pair(cable, CompressionWorkload(model, batch, sequence, steps))
            for kind, (seconds, loss) in zip(KINDS, found):
                gain = found[0][0] / seconds
                yield CompressionRow(link, kind, seconds * 1e3, gain, loss)
        except WorldError as refused:
            yield CompressionRow(link, "", problem=str(refused))


def run_pair(cable: SlowLink, parcel: CompressionWorkload) -> list[tuple[float, float]]:
    """By compression, seconds a step of the slower rank and the last loss; a rank at either end."""
    processes = [start(cable, rank, parcel) for rank in range(2)]
    try:
        said = [process.communicate(timeout=LIMIT_SECONDS) for process in processes]
    except subprocess.TimeoutExpired:
        problem = f"two ranks did not finish {parcel.steps} steps within {LIMIT_SECONDS} s"
        raise WorldError("link", problem, "Use a smaller model.") from None
    finally:
        for process in processes:
            process.kill()
    for process, (_, error) in zip(processes, said):
        if process.returncode:
            last = error.strip().splitlines()[-1] if error.strip() else "without a word"
            raise WorldError("link", f"a rank at its end failed ({last})", "Try one rank first.")
    answers = [json.loads(out.strip().splitlines()[-1]) for out, _ in said]
    return [(max(one[0], other[0]), one[1]) for one, other in zip(*answers)]


def start(cable: SlowLink, rank: int, parcel: CompressionWorkload) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": cable.addresses[0],
        "MASTER_PORT": PORT,
        "GLOO_SOCKET_IFNAME": cable.devices[rank],
    }
    words = [*cable.inside(rank), sys.executable, "-m", __name__, json.dumps(asdict(parcel))]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(words, env=environment, text=True, **pipes)  # type: ignore[call-overload]


def time_rank(parcel: CompressionWorkload, compress: str) -> tuple[float, float]:
    """On one rank: the median of its steps, and the last loss."""
    place = Place.from_environment()
    work = make_workload(
        parcel.model, batch=parcel.batch * place.num_ranks, sequence=parcel.sequence, num_batches=2
    )
    plan = f"fp32 ddp micro={parcel.batch} compress={compress}"
    run = climb(work.make(), loss=work.loss, plan=plan, device="cpu")
    mine = slice(parcel.batch * place.rank, parcel.batch * (place.rank + 1))
    batches = [batch.rows(mine) for batch in work.batches]
    seconds, loss = [], 0.0
    for index in range(WARMUP + parcel.steps):
        dist.barrier()
        began = time.perf_counter()
        loss = run.step(batches[index % 2]).loss
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[WARMUP:]), loss


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked = CompressionWorkload(**json.loads(sys.argv[1]))
    sys.stdout.write(json.dumps([time_rank(asked, kind) for kind in KINDS]) + "\n")
