"""Process groups: their store, time-outs and counts; meshes that torch remembers; DDP's reducer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .lookup import find, has

STORE = "torch.distributed.distributed_c10d._get_default_store"
TIMEOUT = "torch.distributed.distributed_c10d._set_pg_timeout"
WORLD = "torch.distributed.distributed_c10d._world"
COUNT = "torch.distributed.ProcessGroup._get_sequence_number_for_group"
FAKE_STORE = "torch.testing._internal.distributed.fake_pg.FakeStore"
FAKE_BACKEND = "fake"  # torch's backend that sends nothing; it comes with the store
BUCKETS = "torch.distributed.Reducer._rebuild_buckets"
RATE = "torch.nn.parallel.DistributedDataParallel._set_ddp_runtime_logging_sample_rate"
LOG = "torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data"
RECORDERS = {
    "nccl": "torch._C._distributed_c10d._dump_nccl_trace",
    "other": "torch._C._distributed_c10d._dump_fr_trace",
}
CACHES = (  # how tensors lie on a mesh's ranks and travel between them
    ("torch.distributed.tensor._redistribute._gen_transform_infos", "cache_clear"),
    ("torch.distributed.tensor._redistribute.clear_redistribute_planner_cache", ""),
    ("torch.distributed.tensor._collective_utils.MeshTopoInfo.build_from_mesh", "cache_clear"),
    ("torch.distributed.tensor.debug._clear_sharding_prop_cache", ""),
)
# Collectives over one tensor, which torch 2.13 renamed: the older names warn there.
gather_tensor: Callable[..., Any] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)
scatter_tensor: Callable[..., Any] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


def default_store() -> dist.Store:
    """The store where the ranks of the default group met."""
    return find(STORE)()


def set_timeout(timeout: timedelta, group: Any) -> None:
    """Limit how long a collective of the group may take; without the name torch's limit stands."""
    if has(TIMEOUT):
        find(TIMEOUT)(timeout, group)


def groups_of_this_rank() -> list[dist.ProcessGroup]:
    """The groups this rank is in; none where this torch does not list them."""
    known = list(getattr(find(WORLD), "pg_map", ())) if has(WORLD) else []
    return [group for group in known if isinstance(group, dist.ProcessGroup)]


def count_collectives(group: dist.ProcessGroup) -> int:
    """How many collectives this rank has called in the group; 0 where this torch does not count."""
    return find(COUNT)(group) if has(COUNT) else 0


def flight_recorder(backend: str) -> Callable[..., bytes] | None:
    """What writes down torch's record of collectives; None where this torch has none."""
    path = RECORDERS["nccl" if backend == "nccl" else "other"]
    return find(path) if has(path) else None


def clear_mesh_caches() -> None:
    """Have torch work out anew how tensors lie on ranks and travel between them."""
    for path, method in CACHES:
        if has(path):
            clear = getattr(find(path), method, None) if method else find(path)
            if clear is not None:
                clear()


def fake_store() -> dist.Store:
    """A store for a world in which one process plays a rank, and there are no others."""
    store: dist.Store = find(FAKE_STORE)()
    return store


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
