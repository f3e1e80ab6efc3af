"""Boxes of a parameter, wherever its numbers lie, make up the whole again."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from stepladder.rungs import ParameterShard
from stepladder.train.checkpointing.sharded_state import shards_of_parameter
from tests.ranks import run

WHOLE = torch.arange(4 * 12.0).reshape(4, 12)
PLACED = {"rows": Shard(0), "columns": Shard(1), "thirds": _StridedShard(1, split_factor=3)}


def boxes_of(kind: str, flat: slice | None):
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    parameter = nn.Parameter(distribute_tensor(WHOLE, mesh, [PLACED[kind]]))
    held = parameter.to_local().detach()
    held = held if flat is None else held.reshape(-1)[flat]
    shard = ParameterShard("weight", parameter, nn.Parameter(held), ("tensor",), flat)
    return [
        (each.slice, each.tensor) for each in shards_of_parameter("model/weight", shard, held, True)
    ]


@pytest.mark.parametrize("flat", [(None,), (slice(0, 10), slice(10, 24))])
@pytest.mark.parametrize("kind", PLACED)
def test_boxes_of_all_ranks_make_up_the_whole(kind, flat):
    found = torch.full_like(WHOLE, -1)
    for part in flat:
        for boxes in run(boxes_of, 2, kind, part):
            for box, numbers in boxes:
                assert bool((box.view(found) == -1).all())
                box.view(found).copy_(numbers)
    assert torch.equal(found, WHOLE)
