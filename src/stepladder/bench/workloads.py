"""Workloads for the tables: a model with batches it can read."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import nn

from stepladder.data import Batch, SampleOrder, load_batch, text_corpus
from stepladder.model import build
from stepladder.train.user_code.user_code import UserCode
from stepladder.train.user_code.user_model import build_user_model, model_reference

from .time_plans import Workload

SAMPLES = {"mlp-tiny": (64,), "resnet-tiny": (1, 8, 8)}  # one sample's shape
IMAGE = (3, 224, 224)  # of every other model that reads no tokens


def make_workload(
    model: UserCode | str,
    *,
    batch: int,
    sequence: int,
    num_batches: int = 4,
    device: str = "auto",
) -> Workload:
    """The model on the user's own samples, on Python's source, or on random images."""
    code = UserCode(model) if isinstance(model, str) else model
    reference = model_reference(code.model)
    if reference:
        make: partial[nn.Module] = partial(build_user_model, reference, sequence=sequence)
        shape = None
    else:
        shape = getattr(build(code.model, device="meta"), "shape", None)
        make = partial(build, code.model, sequence=sequence if shape else None)
    source = code.training_samples() or (text_corpus(length=sequence) if shape else None)
    if source is None:
        batches = [noise(code.model, batch, seed) for seed in range(num_batches)]
    else:
        order = SampleOrder(len(source), seed=0)
        positions = np.arange(num_batches * batch).reshape(num_batches, batch)
        batches = [load_batch(source, order, row) for row in positions]
    vocab = shape.vocab if shape else None
    return Workload(code.model, make, batches, code, vocab, device)


def noise(name: str, rows: int, seed: int) -> Batch:
    """Random samples with random classes: figures of speed and memory need no more."""
    draw = torch.Generator().manual_seed(seed)
    samples = torch.randn(rows, *SAMPLES.get(name, IMAGE), generator=draw)
    classes = torch.randint(0, 10, (rows,), generator=draw)
    return Batch.of((samples, classes), position=seed * rows, size=rows)
