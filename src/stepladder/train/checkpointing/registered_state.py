"""The state of registered objects in a checkpoint; their tensors in slices, as the optimizer's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from stepladder.checkpoint import CheckpointReader, Manifest, whole_slice
from stepladder.checkpoint.reader import copy_values, from_pairs
from stepladder.errors import PlanError
from stepladder.rungs import ParameterShard
from stepladder.rungs.data_parallel.buffer_copies import whole_buffers
from stepladder.train.engine import Engine

from .plain_values import decode, encode
from .rank_state import stored_values
from .registry import Stateful, StatefulTensors
from .sharded_state import StateShard, saves, shards_of_parameter, stored_path

KIND = "registered"  # "registered/NAME/model/…" are tensors and "registered/NAME/state" the rest


def registered_shards(run: Engine) -> Iterator[StateShard]:
    """All that this rank holds of the registered objects."""
    for name, stateful in run.registry.objects.items():
        yield from tensor_shards(run, name, stateful)
        state = encoded_state(name, stateful)
        shape, mine = tuple(state.shape), run.world.is_rank_zero
        yield StateShard(f"{KIND}/{name}/state", shape, whole_slice(shape), state, mine)


def tensor_shards(run: Engine, name: str, stateful: Stateful) -> Iterator[StateShard]:
    tensors = tensors_of(stateful)
    buffers = [ParameterShard(n, b, b) for n, b in whole_buffers(run.climbed.state)]  # type: ignore[arg-type]
    for index, shard in enumerate([*run.climbed.shards, *buffers]):
        if shard.name in tensors:
            full = saved_path(run, name, shard.name)
            mine = saves(shard, index, run.climbed, run.world)
            yield from shards_of_parameter(full, shard, tensors[shard.name], mine)


def registered_buffers(run: Engine) -> dict[str, Tensor]:
    """The tensors that belong to buffers, by saved name: they may differ between ranks too."""
    buffers = [name for name, _ in whole_buffers(run.climbed.state)]
    return {
        saved_path(run, name, buffer): tensor
        for name, stateful in run.registry.objects.items()
        for buffer, tensor in tensors_of(stateful).items()
        if buffer in buffers
    }


def tensors_of(stateful: Stateful) -> Mapping[str, Tensor]:
    return stateful.tensors() if isinstance(stateful, StatefulTensors) else {}


def saved_path(run: Engine, name: str, tensor: str) -> str:
    return f"{KIND}/{name}/{stored_path(tensor, run.climbed)}"


def encoded_state(name: str, stateful: Stateful) -> Tensor:
    try:
        return encode(stateful.state_dict())
    except (TypeError, ValueError, RecursionError) as refused:
        raise PlanError(
            name,
            f"a checkpoint cannot hold its state_dict: {refused}",
            "Make it of numbers, texts, bytes, tensors, lists and dictionaries.",
        ) from refused


def load_registered(run: Engine, manifest: Manifest, reader: CheckpointReader) -> list[str]:
    """Restore the registered objects, after the model was; what is to be said of it."""
    step, registry = reader.path.name, run.registry
    saved = {name.partition("/")[0] for name in manifest.names(KIND)}
    registry.left_out = dict.fromkeys(sorted(saved - set(registry.objects)), step)
    left_out = "which is not registered: left out"
    said = [f"{step} holds the state of '{name}', {left_out}" for name in registry.left_out]
    for name, stateful in registry.objects.items():
        absent = load_tensors(run, name, stateful, manifest, reader)
        if name in saved:
            stateful.load_state_dict(decode(reader.read(f"{KIND}/{name}/state")))
        if absent:
            said.append(
                f"{step} holds no '{name}' of {len(absent)} tensors, such as "
                f"'{absent[0]}': there it starts from the weights"
            )
        elif name not in saved:
            said.append(f"{step} holds no state of '{name}': it goes on as it is")
    return said


def load_tensors(
    run: Engine, name: str, stateful: Stateful, manifest: Manifest, reader: CheckpointReader
) -> list[str]:
    """Fill an object's tensors; the names of those that the checkpoint does not hold."""
    if not isinstance(stateful, StatefulTensors):
        return []
    stateful.restart()
    shards = list(tensor_shards(run, name, stateful))
    held = [shard for shard in shards if shard.name in manifest.tensors]
    reader.read_all_into([(shard.name, shard.slice, shard.tensor) for shard in held])
    own = stored_values(manifest, reader, run.world) or {}
    for full, tensor in registered_buffers(run).items():
        if full in own:
            copy_values(from_pairs(own[full], tensor.dtype), tensor)
    prefix = f"{KIND}/{name}/model/"
    return sorted({s.name.removeprefix(prefix) for s in shards if s.name not in manifest.tensors})
