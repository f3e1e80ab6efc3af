"""Workloads for the tables: a built-in model with batches it can read."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from stepladder.data import Batch, SampleOrder, load_batch, text_corpus
from stepladder.model import build

from .time_plans import Workload

SAMPLES = {"mlp-tiny": (64,), "resnet-tiny": (1, 8, 8)}  # one sample's shape
IMAGE = (3, 224, 224)  # of every other model that reads no tokens


def make_workload(
    name: str, *, batch: int, sequence: int, num_batches: int = 4, device: str = "auto"
) -> Workload:
    """The named model on Python's own source, or on random images, the same on every machine."""
    shape = getattr(build(name, device="meta"), "shape", None)
    if shape is None:
        batches = [noise(name, batch, seed) for seed in range(num_batches)]
        return Workload(name, partial(build, name), batches, device=device)
    source = text_corpus(length=sequence)
    order = SampleOrder(len(source), seed=0)
    positions = np.arange(num_batches * batch).reshape(num_batches, batch)
    return Workload(
        name,
        partial(build, name, sequence=sequence),
        [load_batch(source, order, row) for row in positions],
        vocab=shape.vocab,
        device=device,
    )


def noise(name: str, rows: int, seed: int) -> Batch:
    """Random samples with random classes: figures of speed and memory need no more."""
    draw = torch.Generator().manual_seed(seed)
    samples = torch.randn(rows, *SAMPLES.get(name, IMAGE), generator=draw)
    classes = torch.randint(0, 10, (rows,), generator=draw)
    return Batch.of((samples, classes), position=seed * rows, size=rows)
