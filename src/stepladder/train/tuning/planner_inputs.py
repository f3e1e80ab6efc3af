"""What the planner is asked with: a module's costs, this machine's devices, a batch's rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stepladder.hardware import Cluster, find_device
from stepladder.model import builtin_shape, describe
from stepladder.record import Calibration, load_calibration
from stepladder.services import service
from stepladder.train.step_batch import as_batch
from stepladder.workload import Facts, facts_of_shape
from stepladder.world import Place, device_memory_bytes
from stepladder.world.machine.machine import identify

ALONE = Place()


def cluster_for(device: torch.device, place: Place = ALONE) -> Cluster:
    """A device of this machine for each rank; of one that nobody lists, its memory is known."""
    host = device_memory_bytes(torch.device("cpu"))
    each = place.local_ranks
    nodes = max(1, place.num_ranks // each)
    if device.type != "cuda":
        cpu = find_device("CPU")
        return Cluster(cpu, nodes, each, cpu.link, cpu.network, host)
    known = identify(torch.cuda.get_device_name(device), device_memory_bytes(device))
    return Cluster(known, nodes, each, known.link, known.network, host)


def speeds_for(device: torch.device, place: Place = ALONE) -> Calibration | None:
    """What was measured of this device, now at the latest; by rank 0, whose choice all follow."""
    ranks = place.local_ranks
    if place.rank:
        known = load_calibration(cluster_for(device).device.name)
        return known.shared_by(ranks) if known and device.type == "cpu" else known
    found: Calibration | None = service("speeds_here")(device, ranks, others_wait=True)
    return found


def facts_for(model: nn.Module, sample: Any = None) -> Facts:
    """What the module costs: by its own shape where it has one, else by tracing it."""
    shape = builtin_shape(model)
    if shape is not None:
        return facts_of_shape(shape)
    return describe(model, sample=None if sample is None else as_batch(sample, 0))


def rows_of(sample: Any) -> int | None:
    return None if sample is None else as_batch(sample, 0).num_rows
