"""What this rank writes of a run, apart from the run; see [Note: when the copy is taken]."""

from __future__ import annotations

import platform
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from mmap import PAGESIZE as PAGE
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.checkpoint import whole_slice
from stepladder.checkpoint.hashing import THREADS
from stepladder.checkpoint.safetensors_file import METADATA
from stepladder.model import builtin_shape
from stepladder.model.huggingface.saved_settings import model_settings
from stepladder.rungs import ParameterShard, local
from stepladder.rungs.data_parallel.renormalised_rows import renormalised
from stepladder.rungs.parameter_shards import reshard
from stepladder.train.engine import Engine
from stepladder.train.optimizer.error_feedback import read_error_feedback
from stepladder.train.optimizer.group_settings import counted_settings, given_settings
from stepladder.train.optimizer.learning_rates import own_rates
from stepladder.train.optimizer.loose_state import read_loose_state
from stepladder.version import VERSION

from .async_copy import Copying
from .rank_state import RankState, copies_of, read_rank_state
from .registered_state import registered_buffers, registered_shards
from .rng_state import read_generators
from .sharded_state import StateShard, saved_name, saves, state_shards

NOTE_BYTES = 6 * 2**10  # of one shard: what is known of it, here and as JSON; 4.2 KiB were measured
THREAD_BYTES = 2**19  # of one that writes, one that waits for the disk or the one that commits
ON_PAGES = 2**17  # what is larger gets pages of its own, and up to one for their head
ALIGNED = 2**7  # the head of what is smaller, and its rounding


@dataclass(slots=True)
class Snapshot:
    """What this rank writes of a run."""

    step: int
    state: dict[str, Any]
    files: dict[str, dict[str, Tensor]]  # by file, by key
    places: dict[str, list[tuple[StateShard, str, str]]]  # of each tensor: its shards, file and key
    copying: Copying | None = None  # None: these are the run's own tensors
    refused: Exception | None = None  # why there is nothing to write

    def add(self, shard: StateShard, rank: int, kept: Tensor) -> None:
        file = f"{shard.name.partition('/')[0]}-{rank:05d}.safetensors"
        tensors = self.files.setdefault(file, {})
        key = free_key(shard.key, tensors)
        tensors[key] = kept
        self.places.setdefault(shard.name, []).append((shard, file, key))


def take_snapshot(run: Engine, buffers: dict[str, Tensor] | None) -> Snapshot:
    """This rank's part of the run's state. With `buffers` copies of it are begun; else it is the
    run's own, and the run must stand still until it is written."""
    reshard(run.module)  # what a pass without a backward left gathered
    rank = run.world.place.rank
    passing = read_rank_state(run.climbed, run.world, registered_buffers(run))
    taken = Snapshot(run.index, describe(run, passing), {}, {})
    pairs = []
    for shard in saved_shards(run, passing):
        if not shard.mine:
            continue
        here = passing.means.get(shard.name, shard.tensor).detach()
        if buffers is None:
            kept = here.cpu()
        else:
            kept = place_for(here, f"{shard.name}{shard.slice.start}", buffers)
            if shard.fresh:  # copied now: copies of all of them would fill the device
                kept.copy_(here)
            else:
                pairs.append((kept, here))
        taken.add(shard, rank, kept)
    own = {**read_generators(run.world.device), **read_error_feedback(run.climbed), **passing.own}
    own |= run.reading.state()
    own |= run.held.read(run.climbed, run.world.device, run.events)
    taken.files[f"rank-{rank:05d}.safetensors"] = own
    if buffers is not None:
        taken.copying = Copying(run.world.device)
        changing = changed_in_passes(run.climbed.state)
        for there, here in pairs:
            if here.data_ptr() in changing:
                there.copy_(here)
        taken.copying.begin([pair for pair in pairs if pair[1].data_ptr() not in changing])
    return taken


def changed_in_passes(module: nn.Module) -> set[int]:
    """Where tensors lie that a forward pass changes: buffers, and embeddings that it rescales."""
    buffers = {b.data_ptr() for b in module.buffers() if b.layout == torch.strided}
    rescaled = {local(table.weight).data_ptr() for table in renormalised(module)}
    return buffers | rescaled


def saved_shards(run: Engine, passing: RankState) -> Iterator[StateShard]:
    """All that this rank may have to write, but for its own file."""
    yield from state_shards(run.climbed, run.optimizer, run.world)
    yield from registered_shards(run)
    for index, (name, value) in enumerate(passing.extra.items()):
        mine = saves(ParameterShard(name, value, value), index, run.climbed, run.world)  # type: ignore[arg-type]
        full = f"extra/{saved_name(name, run.climbed)}"
        yield StateShard(full, tuple(value.shape), whole_slice(value.shape), value, mine)


def free_key(key: str, taken: Container[str]) -> str:
    """A key that nothing else has in a file: a name may look like a slice of another tensor."""
    while key in taken or key == METADATA:
        key += "~"
    return key


def forecast_snapshot(run: Engine) -> int:
    """Bytes of host memory that a save in the background takes on this rank at most.

    All but what notes and threads take is kept for the next.
    """
    held = chain(state_shards(run.climbed, run.optimizer, run.world), registered_shards(run))
    pinned = run.world.device.type == "cuda"
    # One after the other: some are made for the save, and all of them would fill the device.
    mine = [host_bytes(shard.tensor.nbytes, pinned) for shard in held if shard.mine]
    return sum(mine) + len(mine) * NOTE_BYTES + (THREADS + 2) * THREAD_BYTES


def host_bytes(size: int, pinned: bool) -> int:
    """What `place_for` takes for so many bytes."""
    if pinned:
        return 1 << max(size - 1, 0).bit_length()  # as torch's allocator rounds
    return size + (2 * PAGE if size >= ON_PAGES else ALIGNED)


def place_for(tensor: Tensor, label: str, buffers: dict[str, Tensor]) -> Tensor:
    """Host memory for a tensor: what the last save used, where it fits."""
    there = buffers.get(label)
    if there is None or there.shape != tensor.shape or there.dtype != tensor.dtype:
        pinned = tensor.device.type == "cuda"  # else the copy would hold the host
        there = buffers[label] = torch.empty(
            tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned
        )
    return there


def describe(run: Engine, passing: RankState) -> dict[str, Any]:
    run.look_back()  # what it decides later must follow from what is saved
    shape = builtin_shape(run.module)
    return {
        "step": run.index,
        "position": run.position,
        "seed": run.seed,
        "shape": asdict(shape) if shape else None,
        **model_settings(run.flops.module),  # as it was before any rung
        "plan": str(run.plan),
        "optimizer": str(run.plan.optimizer),
        "rate": str(run.scheduler or run.rate),
        "own_rates": own_rates(run.optimizer),
        "groups": counted_settings(run.optimizer),
        "settings": given_settings(run.optimizer),
        "loose_state": read_loose_state(run.optimizer),
        "loss_scale": run.scale.state_dict(),
        "health": run.health.state_dict(),
        "precision": str(run.plan.precision),
        "exact": str(run.plan.exact),
        "batch": run.health.rows,
        "structure": run.climbed.structure,
        "copies": copies_of(run.world.layout),
        "differing": list(passing.differing),
        "versions": {
            "stepladder": VERSION,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
