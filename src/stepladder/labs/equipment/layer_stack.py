"""A stack of square layers, the model of several lessons: weight by weight, or as a module.

The module comes whole, copied by DDP, or sharded by torch: then no rank ever holds more than its
own pieces and the layer at work, since the layers are made without memory and filled piece by
piece.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

NUM_LAYERS, WIDTH = 16, 128


def make_weight(layer: int) -> Tensor:
    random = torch.Generator().manual_seed(layer)
    return torch.randn(WIDTH, WIDTH, generator=random) / WIDTH**0.5


def make_rows(rank: int, num_rows: int = 4) -> Tensor:
    """A rank's part of the batch."""
    return torch.randn(num_rows, WIDTH, generator=torch.Generator().manual_seed(rank))


def make_layers() -> nn.Sequential:
    layers = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()) for _ in range(NUM_LAYERS)
    ]
    return nn.Sequential(*layers)


def whole() -> nn.Sequential:
    model = make_layers()
    with torch.no_grad():
        for layer, block in enumerate(model):
            block[0].weight.copy_(make_weight(layer))  # type: ignore[index]
    return model


def copied(**options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(whole(), **options)


def sharded(*, keep: bool = False, shard_ways: int | None = None, **options: Any) -> nn.Module:
    """Sharded by torch; `keep` holds layers gathered for backward, `shard_ways` below the number
    of ranks makes copies of the sharded model."""
    num_ranks = dist.get_world_size()
    ways = shard_ways or num_ranks
    shape, names = (num_ranks // ways, ways), ("replicate", "shard")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if ways == num_ranks:
        mesh = mesh["shard"]
    with torch.device("meta"):
        model: Any = make_layers()
    for block in model:
        fully_shard(block, mesh=mesh, reshard_after_forward=not keep, **options)
    fully_shard(model, mesh=mesh, **options)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for layer, block in enumerate(model):
            piece = make_weight(layer).chunk(ways)[mesh.get_local_rank("shard")]
            block[0].weight.to_local().copy_(piece)
    return model
