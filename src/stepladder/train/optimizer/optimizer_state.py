"""What an optimizer remembers, taken out of a checkpoint or begun anew.

An optimizer's state belongs to its kind: momentum says nothing to Adam, and one that finds a part
of what it needs fails in its next step. So it is taken whole or not at all. What is not taken
begins where a fresh run begins: at zero, and a master in float32 at the parameter it is of.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepladder.checkpoint import CheckpointReader, Manifest, TensorSlice
from stepladder.checkpoint.safetensors_file import DTYPES
from stepladder.errors import RecordError
from stepladder.rungs import ParameterShard
from stepladder.train.checkpointing.plain_values import decode
from stepladder.train.checkpointing.sharded_state import (
    PLAIN,
    saved_name,
    shards_of_parameter,
    stored_path,
)
from stepladder.train.engine import Engine

from .compact.compact_adam import CompactAdam
from .given_optimizer import keys_of_state
from .master_weights import MASTER
from .muon.muon import ADAM, ROW_MEANS, Muon

FACTORS = {"row_var", "col_var"}  # of a matrix's second moments
Wanted = tuple[str, TensorSlice, Tensor]  # of the checkpoint, a slice of it, its place


def make_state(run: Engine, manifest: Manifest, path: Path) -> set[str]:
    """Give the optimizer the tensors it had, empty; the names of those to fill.

    A fresh one makes them at its first step. One that made them at once chose their type and
    place: those are filled.
    """
    on_device = bool(run.optimizer.defaults.get("fused"))  # else torch reads `step` on the host
    kept = saved_keys(manifest, run)
    counts = counting_keys(manifest, run, kept)
    whole: dict[Tensor, Any] = {}
    taken: set[str] = set()
    for shard in run.climbed.shards:
        name = saved_name(shard.name, run.climbed)
        own, saved = dict(run.optimizer.state.get(shard.owned, {})), kept.get(name, [])
        if of_this_code(manifest, run):
            own = {key: value for key, value in own.items() if key in saved}
        if saved:
            check_whole(path, name, set(saved), needed(run, name, len(shard.parameter.shape)))
        for key in saved:  # in the order they were made: the next file has it too
            if key == MASTER and MASTER not in own:
                continue
            full = f"optimizer/{name}/{key}"
            taken.add(full)
            if key == PLAIN:
                continue
            shape = manifest.tensors[full].shape
            check_shape(path, full, shape, shard, free=run.plan.optimizer.is_code)
            sliced = key not in counts and shape == tuple(shard.parameter.shape)
            made = empty_state(shard, shape, sliced, on_device or key != "step")
            if run.plan.optimizer.is_code:  # it may count in whole numbers
                made = made.to(DTYPES[manifest.tensors[full].dtype])
            there = own.get(key)
            fits = isinstance(there, Tensor) and there.shape == made.shape
            own[key] = there if fits else made
        if own:
            whole[shard.owned] = own
    run.optimizer.state.clear()
    run.optimizer.state.update(whole)  # only now: a checkpoint that is refused changes nothing
    return taken


def set_plain_state(run: Engine, manifest: Manifest, reader: CheckpointReader) -> None:
    """Give the optimizer what it kept for a parameter that is no tensor."""
    if not saved_keys(manifest, run):
        return
    for shard in run.climbed.shards:
        full = f"optimizer/{saved_name(shard.name, run.climbed)}/{PLAIN}"
        if full in manifest.tensors:
            run.optimizer.state[shard.owned].update(decode(reader.read(full)))


def saved_keys(manifest: Manifest, run: Engine) -> dict[str, list[str]]:
    """By parameter what was saved of it; nothing where another kind of optimizer remembered it."""
    how, by = run.plan.optimizer, saved_by(manifest)
    kept: dict[str, list[str]] = {}
    for name in manifest.names("optimizer"):
        parameter, _, key = name.rpartition("/")
        kept.setdefault(parameter, []).append(key)
    if how.is_code:
        keys, own = set().union(*kept.values()), keys_of_state(run.optimizer)
        # The same code may keep more in later steps, or for tensors of other shapes.
        return kept if (own <= keys if of_this_code(manifest, run) else own == keys) else {}
    if isinstance(run.optimizer, Muon):
        return kept if by in ("", "muon") and run.optimizer.remembers_as(kept) else {}
    if by == "muon":  # whose momentum is that of other updates than SGD's
        return {}
    known = {"adafactor": {"step", "variance", *FACTORS}, "sgd": {"momentum_buffer"}}
    mine = known.get(how.name, {*ADAM, MASTER}) if how.name != "sgd" or how.momentum else set()
    return kept if set().union(*kept.values()) <= mine else {}


def counting_keys(manifest: Manifest, run: Engine, kept: dict[str, list[str]]) -> set[str]:
    """What is one number whatever the parameter's size, as a count of steps is.

    A parameter without dimensions does not tell it from a moment, so the others do.
    """
    named = ((saved_name(shard.name, run.climbed), shard.parameter) for shard in run.climbed.shards)
    return {"step"} | {
        key
        for name, parameter in named
        for key in kept.get(name, ())
        if parameter.dim() and not manifest.tensors[f"optimizer/{name}/{key}"].shape
    }


def of_this_code(manifest: Manifest, run: Engine) -> bool:
    """Whether the run that wrote a checkpoint had the same code for its optimizer."""
    return run.plan.optimizer.is_code and saved_by(manifest) == run.plan.optimizer.name


def saved_by(manifest: Manifest) -> str:
    """The optimizer of the run that wrote a checkpoint; empty where it does not say."""
    return "".join(str(manifest.state.get("optimizer", "")).split()[:1])


def needed(run: Engine, name: str, dimensions: int) -> set[str]:
    """Without which the optimizer's next step would fail."""
    how = run.plan.optimizer
    if how.is_code:
        return set()
    if isinstance(run.optimizer, Muon):
        return run.optimizer.keys_of(name)
    factored = {"step", *FACTORS} if dimensions > 1 else {"step", "variance"}
    return {"sgd": {"momentum_buffer"}, "adafactor": factored}.get(how.name, ADAM)


def check_whole(path: Path, name: str, saved: set[str], wanted: set[str]) -> None:
    missing = sorted(wanted - saved)
    if missing:
        raise RecordError(
            "checkpoint",
            f"{path} holds only part of what the optimizer knew of '{name}': no {missing[0]}",
            "Use an older checkpoint.",
        )


def check_shape(
    path: Path, full: str, shape: tuple[int, ...], shard: ParameterShard, *, free: bool
) -> None:
    """A kernel would believe it, and read beyond the tensor's end.

    Args:
        free: the optimizer is code, and may keep anything that is not sliced.
    """
    whole, key = tuple(shard.parameter.shape), full.rpartition("/")[2]
    factor = len(shape) == len(whole) and all(n in (1, m) for n, m in zip(shape, whole))
    means = key in (*FACTORS, ROW_MEANS)
    if shape == whole or free or (key == "step" and not shape) or (means and factor):
        return
    raise RecordError(
        "checkpoint",
        f"{path} is of another model: '{full.partition('/')[2]}' is {shape} there and its "
        f"parameter {whole} here",
        "Build the same model.",
    )


def empty_state(
    shard: ParameterShard, shape: tuple[int, ...], sliced: bool, on_device: bool
) -> Tensor:
    if sliced:
        return torch.empty_like(shard.owned)
    device = shard.owned.device if on_device else torch.device("cpu")
    return torch.empty(shape, device=device)


def begin_anew(run: Engine, taken: set[str]) -> Iterator[Wanted]:
    """Set to zero what the checkpoint holds nothing of; masters are filled as their parameters."""
    if isinstance(run.optimizer, CompactAdam):  # see load_state.py
        return
    if run.plan.optimizer.is_code and not taken:
        if run.index:  # else it is as it was given, with what it makes at once
            run.optimizer.state.clear()
        return
    for shard in run.climbed.shards:
        name = saved_name(shard.name, run.climbed)
        for key, value in run.optimizer.state.get(shard.owned, {}).items():
            if not isinstance(value, Tensor) or f"optimizer/{name}/{key}" in taken:
                continue
            if key == MASTER:
                parts = shards_of_parameter(
                    stored_path(shard.name, run.climbed), shard, value, mine=False
                )
                yield from ((part.name, part.slice, part.tensor) for part in parts)
            else:
                value.zero_()
