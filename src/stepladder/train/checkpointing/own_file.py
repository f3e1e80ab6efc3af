"""What a rank saved of its own, read again: by the same rank, or the first one's by others."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from stepladder.checkpoint import CheckpointReader, Manifest
from stepladder.checkpoint.safetensors_file import TensorFile
from stepladder.errors import RecordError
from stepladder.train.engine import Engine

from .attribute_state import DATA, RAW
from .rng_state import set_generators


def rank_file(run: Engine, manifest: Manifest, reader: CheckpointReader) -> TensorFile:
    """What this rank saved of its own; of other ranks, what the first did."""
    rank = run.world.place.rank if manifest.ranks == run.world.place.num_ranks else 0
    return reader.file(f"rank-{rank:05d}.safetensors")


def kept_by_rank(
    run: Engine, manifest: Manifest, reader: CheckpointReader, names: Iterable[str]
) -> dict[str, Tensor] | None:
    """Where the saved run was in what it read; of other ranks, where the first was."""
    if not manifest.ranks:  # no run wrote it
        return None
    file = rank_file(run, manifest, reader)
    return {name: file.tensor(name) for name in names if name in file.names()}


def set_own_generators(run: Engine, manifest: Manifest, reader: CheckpointReader) -> None:
    """This rank's random generators; of other ranks, the first one's, with all of what they draw
    alike, such as the order of an epoch."""
    if manifest.ranks:
        file = rank_file(run, manifest, reader)
        found = {name: file.tensor(name) for name in file.names()}
        try:
            set_generators(found, run.world.device)
        except (KeyError, ValueError, TypeError, RuntimeError) as wrong:
            raise RecordError(
                "checkpoint", f"{file.path} holds no state of generators", "Use an older one."
            ) from wrong


def set_own_attributes(run: Engine, manifest: Manifest, reader: CheckpointReader) -> list[str]:
    """What the user's code held outside of any state_dict; what stays otherwise, in sentences."""
    if not manifest.ranks:
        return []
    file = rank_file(run, manifest, reader)
    stored = {name: file.tensor(name) for name in file.names() if name.startswith((DATA, RAW))}
    return list(run.held.set(run.climbed, stored, run.world.device))
