"""Steps of a plan on its ranks, with a fingerprint of every parameter and buffer after each."""

from __future__ import annotations

import hashlib
import math
import platform

import torch
from torch import Tensor, nn

from stepladder.checkpoint import as_bytes
from stepladder.launch import Ranks
from stepladder.rungs.data_parallel.buffer_copies import whole_buffers
from stepladder.verify.course import Course, start
from stepladder.verify.reference import engine_steps, whole_parameters
from stepladder.version import VERSION
from stepladder.world import detect_machine

from .certificate import CertifiedRun, Fingerprint, StepRecord

SUMS = 4  # in a sketch
RankSteps = tuple[dict[str, Fingerprint], list[StepRecord]]  # before the first, and after each


def record_run(pool: Ranks, course: Course, verdict: str) -> CertifiedRun:
    """Train as the plan says; tensors that only some ranks have are put together."""
    plan = course.plan
    ranks: list[RankSteps] = pool.call(record_rank, course, ranks=plan.layout.num_ranks)
    together = [
        StepRecord(each[0].loss, {n: p for one in reversed(each) for n, p in one.tensors.items()})
        for each in zip(*(steps for _, steps in ranks))
    ]
    first = {name: one for before, _ in reversed(ranks) for name, one in before.items()}
    return CertifiedRun(
        str(plan), course.name, str(plan.optimizer), course.device, verdict, first, tuple(together)
    )


def record_rank(course: Course) -> RankSteps:
    run, samples = start(course)
    first = fingerprints(run.module)
    steps = engine_steps(run, samples, course.steps)
    return first, [StepRecord(step.loss, fingerprints(run.module)) for step in steps]


def fingerprints(module: nn.Module) -> dict[str, Fingerprint]:
    tensors = {**whole_parameters(module), **dict(whole_buffers(module))}
    return {name: fingerprint(tensor.detach().cpu()) for name, tensor in tensors.items()}


def fingerprint(tensor: Tensor) -> Fingerprint:
    """A hash of a tensor's bits, and sums of its numbers with weights that go up and down."""
    shape = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    found = hashlib.blake2b(shape + as_bytes(tensor).numpy().tobytes(), digest_size=16)
    flat = tensor.reshape(-1)
    numbers = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    places = torch.arange(1, numbers.numel() + 1, dtype=torch.float64)
    weights = torch.stack([torch.cos(places * math.sqrt(each)) for each in (2, 3, 5, 7)[:SUMS]])
    return Fingerprint(found.hexdigest(), tuple((weights @ numbers.double()).tolist()))


def made_with(device: str) -> dict[str, str]:
    """Versions and hardware that a run's last bits may depend on."""
    return {
        "stepladder": VERSION,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": detect_machine().cpu,
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "threads": str(torch.get_num_threads()),
    }
