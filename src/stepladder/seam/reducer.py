"""DDP's reducer: its buckets, and how long it waits."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from .lookup import find, has

BUCKETS = "torch.distributed.Reducer._rebuild_buckets"
RATE = "torch.nn.parallel.DistributedDataParallel._set_ddp_runtime_logging_sample_rate"
LOG = "torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data"


def sort_buckets(copy: DistributedDataParallel) -> None:
    """Sort gradients into buckets in the order in which the last backward pass made them."""
    find(BUCKETS)(copy.reducer)


def time_every_step(copy: DistributedDataParallel) -> None:
    """Have DDP time each step, not one in a hundred."""
    if has(RATE):
        find(RATE)(copy, 1)


def timings(copy: DistributedDataParallel) -> dict[str, Any]:
    """What DDP has timed; nothing where this torch does not say."""
    return find(LOG)(copy) if has(LOG) else {}
