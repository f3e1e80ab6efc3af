"""State that a rank's own forward passes change: buffers, and what `get_extra_state` returns.

All copies of the model have the same parameters, but each saw other samples, so these may differ.
A checkpoint stores one value for runs on other ranks: the mean over the copies where there is one,
else the first copy's. Where copies differ, each rank stores its own too, beside its random
generators, so that the same ranks go on exactly. Saving changes nothing of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.checkpoint import CheckpointReader, Manifest
from stepladder.checkpoint.reader import copy_values, from_pairs
from stepladder.checkpoint.safetensors_file import DTYPE_CODES
from stepladder.errors import ModelError
from stepladder.plan import Layout
from stepladder.rungs import Climbed
from stepladder.rungs.data_parallel.broadcast_parameters import is_strided
from stepladder.rungs.data_parallel.buffer_copies import (
    find_differing,
    is_averaged,
    mean_over_copies,
    whole_buffers,
)
from stepladder.seam.modules import EXTRA_STATE, buffers_of, persistent_buffers
from stepladder.world import World

from .plain_values import decode, encode
from .sharded_state import saved_name, stored_path

OWN = "own/"  # before the name, in a rank's own file


@dataclass(frozen=True, slots=True)
class RankState:
    """Copies of what this rank's passes change, at one moment."""

    extra: dict[str, Tensor] = field(default_factory=dict)  # encoded, by name in the module
    own: dict[str, Tensor] = field(default_factory=dict)  # what other copies have otherwise
    means: dict[str, Tensor] = field(default_factory=dict)  # of it, over the copies: by saved name
    differing: tuple[str, ...] = ()


def read_rank_state(
    climbed: Climbed, world: World, registered: Mapping[str, Tensor] | None = None
) -> RankState:
    """What a save needs to know; every rank calls it.

    Args:
        registered: tensors of registered objects that belong to buffers, by saved name.
    """
    extra: dict[str, Tensor] = {}
    problem: Exception | None = None
    for name, read in encoded_parts(climbed.state):
        try:
            extra[name] = encoded(name, read())
        except Exception as refused:  # raised below: the other ranks compare what they have
            extra[name], problem = torch.zeros(0, dtype=torch.uint8), refused
    named = {stored_path(name, climbed): b for name, b in whole_buffers(climbed.state)}
    named |= {f"extra/{saved_name(name, climbed)}": value for name, value in extra.items()}
    named |= registered or {}
    own, means = {}, {}
    for (name, tensor), (numbers, shape) in zip(
        named.items(), find_differing(list(named.values()), world)
    ):
        if numbers or shape:
            own[OWN + name] = tensor.detach().to("cpu", copy=True).contiguous()
            if is_averaged(tensor) and not shape:
                means[name] = mean_over_copies(tensor, world)
    if problem is not None:
        raise problem
    return RankState(extra, own, means, tuple(name.removeprefix(OWN) for name in own))


def encoded_parts(module: nn.Module) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Extra state and sparse buffers, which are stored as bytes: by name, how to read each."""
    for prefix, part in module.named_modules():
        dot = f"{prefix}." if prefix else ""
        if has_extra_state(part):
            yield dot + EXTRA_STATE, part.get_extra_state
        for name, buffer in persistent_buffers(part):
            if not is_strided(buffer):
                yield dot + name, partial(getattr, part, name)


def encoded(name: str, value: Any) -> Tensor:
    try:
        return encode(value)
    except (TypeError, ValueError, RecursionError) as refused:
        raise ModelError(
            name.removesuffix(f".{EXTRA_STATE}"),
            f"a checkpoint cannot hold its state '{name}': {refused}",
            "Make it of numbers, texts, bytes, tensors, lists and dictionaries.",
        ) from refused


def has_extra_state(part: nn.Module) -> bool:
    return type(part).get_extra_state is not nn.Module.get_extra_state


def check_state(module: nn.Module) -> None:
    """Refuse, before the first step, a module whose state no checkpoint can hold or give back."""
    for name, part in module.named_modules():
        if has_extra_state(part) and type(part).set_extra_state is nn.Module.set_extra_state:
            raise ModelError(
                name or type(part).__name__,
                "get_extra_state is defined and set_extra_state is not, so it cannot be resumed",
                "Define set_extra_state.",
            )
    for name, read in encoded_parts(module):
        encoded(name, read())
    for name, tensor in (*module.named_parameters(), *whole_buffers(module)):
        if tensor.dtype not in DTYPE_CODES:
            raise ModelError(
                name, f"a checkpoint cannot hold a tensor of {tensor.dtype}", "Use another type."
            )


def set_rank_state(
    climbed: Climbed, world: World, manifest: Manifest, reader: CheckpointReader
) -> list[str]:
    """Go on with this rank's own buffers and extra state; what is to be said of it."""
    kept, said = stored_values(manifest, reader, world), []
    differing = manifest.state.get("differing") or []
    if kept is None and differing:
        said.append(
            f"{len(differing)} buffers or extra states differed between the ranks that saved them, "
            f"such as '{str(differing[0]).partition('/')[2]}': all go on from their mean, or where "
            "there is none from the first rank's"
        )
    kept = kept or {}
    for name, buffer in whole_buffers(climbed.state):
        value = kept.get(stored_path(name, climbed))
        if value is None:
            continue
        value = from_pairs(value, buffer.dtype)
        if value.shape == buffer.shape:
            copy_values(value, buffer.detach())
    return said + set_encoded(climbed, manifest, reader, kept)


def set_encoded(
    climbed: Climbed, manifest: Manifest, reader: CheckpointReader, kept: Mapping[str, Tensor]
) -> list[str]:
    """Extra state and sparse buffers, which are made anew rather than filled."""
    absent = []
    for prefix, part in climbed.state.named_modules():
        dot = f"{prefix}." if prefix else ""
        sparse = {n: b.device for n, b in persistent_buffers(part) if not is_strided(b)}
        for name in [*sparse, *([EXTRA_STATE] if has_extra_state(part) else [])]:
            full = f"extra/{saved_name(dot + name, climbed)}"
            if full not in manifest.tensors:
                absent.append(dot + name)
                continue
            value = decode(kept[full] if full in kept else reader.read(full))
            if name == EXTRA_STATE:
                part.set_extra_state(value)
            else:
                buffers_of(part)[name] = value.to(sparse[name])
    return [f"the checkpoint holds no state '{name}': it stays as it is" for name in absent]


def stored_values(
    manifest: Manifest, reader: CheckpointReader, world: World
) -> dict[str, Tensor] | None:
    """What this rank stored of its own; None where other ranks, or other copies, go on."""
    if manifest.ranks != world.place.num_ranks:
        return None
    if manifest.state.get("copies", copies_of(world.layout)) != copies_of(world.layout):
        return None
    file = reader.file(f"rank-{world.place.rank:05d}.safetensors")
    return {n.removeprefix(OWN): file.tensor(n) for n in file.names() if n.startswith(OWN)}


def copies_of(layout: Layout) -> list[int]:
    """Which rank sees which samples follows from these numbers."""
    more = [layout.experts] if layout.experts > 1 else []
    return [layout.pipeline, layout.replicate * layout.shard, layout.context, layout.tensor, *more]
