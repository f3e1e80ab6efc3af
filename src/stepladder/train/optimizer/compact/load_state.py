"""What a compact optimizer remembers, read from any run's checkpoint, one parameter at a time.

All of it in float32 at once would not fit where the compact state just does.
"""

from __future__ import annotations

from pathlib import Path

import torch

from stepladder.checkpoint import CheckpointReader, Manifest
from stepladder.rungs import ParameterShard
from stepladder.train.checkpointing.sharded_state import (
    saved_name,
    shards_of_parameter,
    stored_path,
)
from stepladder.train.engine import Engine
from stepladder.train.optimizer.master_weights import KEPT, MASTER
from stepladder.train.optimizer.optimizer_state import check_shape, check_whole, needed, saved_keys

from .compact_adam import CompactAdam


def names_of_state(run: Engine, manifest: Manifest, path: Path) -> set[str]:
    """The tensors of a checkpoint to read; changes nothing, and refuses another model's."""
    kept, taken = saved_keys(manifest, run), set()
    for shard in run.climbed.shards:
        name = saved_name(shard.name, run.climbed)
        if saved := kept.get(name, []):
            check_whole(path, name, set(saved), needed(run, name, len(shard.parameter.shape)))
        for key in saved:
            full = f"optimizer/{name}/{key}"
            check_shape(path, full, manifest.tensors[full].shape, shard, free=False)
            taken.add(full)
    return taken


def read_compact(
    run: Engine, manifest: Manifest, reader: CheckpointReader, taken: set[str]
) -> None:
    """Set parameters, masters and moments; of what was not saved, moments are zero and masters the
    parameters."""
    if isinstance(run.optimizer, CompactAdam):
        if manifest.ranks:  # else no run wrote it, and nothing was drawn yet
            run.optimizer.seed = manifest.state["seed"]
        for shard in run.climbed.shards:
            read_parameter(run, run.optimizer, reader, taken, shard)


def read_parameter(
    run: Engine,
    optimizer: CompactAdam,
    reader: CheckpointReader,
    taken: set[str],
    shard: ParameterShard,
) -> None:
    name, wanted = saved_name(shard.name, run.climbed), []
    values = {key: torch.zeros_like(shard.owned, dtype=torch.float32) for key in KEPT}
    for key, value in values.items():
        full = f"optimizer/{name}/{key}"
        if full not in taken and key == MASTER:
            full = stored_path(shard.name, run.climbed)
        elif full not in taken:
            continue
        parts = shards_of_parameter(full, shard, value.detach(), mine=False)
        wanted += [(part.name, part.slice, part.tensor) for part in parts]
    reader.read_all_into(wanted)
    counted = f"optimizer/{name}/step"
    step = reader.read(counted) if counted in taken else torch.zeros(())
    optimizer.restore(shard.owned, {**values, "step": step})
