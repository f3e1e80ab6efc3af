"""The built-in run, `stepladder train` without a recipe: what it trains on this machine.

On a CPU: a small GPT. On a GPU with room for it: GPT-2 124M in its own shape, vocabulary included,
on the same bytes. The text is the Python standard library's source. Whatever the user stated stays;
the number of steps, if not stated, follows from a probe of the machine (see size_run.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from stepladder.hardware import Cluster
from stepladder.plan import Plan, Recipe, read_recipe
from stepladder.plan.recipe import pairs
from stepladder.planner import forecast
from stepladder.train.tuning.auto_plan import can_compile, precision_for
from stepladder.train.tuning.planner_inputs import cluster_for
from stepladder.workload import find_facts
from stepladder.world import device_memory_bytes, pick_device

GPU_MODEL, GPU_SEQUENCE = "gpt2", 1024
GPU_BATCH = 32  # sequences of a step: 32,768 tokens
GPU_RATE = "6e-4"
MICRO_BATCHES = (32, 16, 8, 4)  # the largest that fits is used
FILL = 0.85  # of the device's memory that the forecast may fill
ROOM_BYTES = 16 * 2**30  # of a GPU that the device table does not know, to hold GPT-2


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """A recipe to open, and what was chosen in it for the user."""

    recipe: Recipe
    because: str = ""  # why this model and this plan; empty where the user stated them
    sized: bool = False  # whether the steps are to follow from a probe


def read_built_in(settings: Sequence[str], *, plan: str | Plan | None = None) -> ChosenRun:
    """The built-in run with the user's settings; resumed, it is what its folder says it was."""
    recipe = read_recipe(None, settings)
    stated = {f"{section}.{key}" for section, key, _ in pairs(settings)}
    saved = Path(recipe.run.folder, "run.toml") if recipe.run.folder else None
    if recipe.run.resume:
        known = saved is not None and saved.exists()
        return ChosenRun(read_recipe(saved, settings) if known else recipe)
    sized = "train.steps" not in stated
    if not sized or plan is not None or states(stated, "plan"):
        return ChosenRun(recipe, sized=sized)
    device = pick_device(recipe.train.device)
    free = not states(stated, "model", "data") and "train.batch" not in stated
    if device.type == "cuda" and free:
        chosen, because = choose_for_gpu(recipe, device, stated)
        return ChosenRun(chosen, because, sized)
    precision, because = precision_for(device)
    return ChosenRun(replace(recipe, plan={"precision": precision}), because, sized)


def states(stated: Collection[str], *sections: str) -> bool:
    return any(key.startswith(f"{section}.") for key in stated for section in sections)


def choose_for_gpu(
    recipe: Recipe, device: torch.device, stated: Collection[str]
) -> tuple[Recipe, str]:
    """GPT-2 124M with the largest micro-batch that fits; the small GPT where none does."""
    precision, because = precision_for(device)
    compiles = {"compile": "on", "kernels": "on"} if can_compile(device) else {}
    micro = largest_micro(device, " ".join([precision, *(f"{k}={v}" for k, v in compiles.items())]))
    if micro is None:
        small = replace(recipe, plan={"precision": precision})
        return small, f"{because}; GPT-2 124M does not fit {device}, so the small GPT is trained"
    model = replace(recipe.model, name=GPU_MODEL, sequence=GPU_SEQUENCE)
    key = "adamw_lr" if recipe.optimizer.get("name") == "muon" else "lr"
    rate = {} if f"optimizer.{key}" in stated else {key: GPU_RATE}
    sized = replace(
        recipe,
        model=model,
        train=replace(recipe.train, batch=GPU_BATCH),
        optimizer={**recipe.optimizer, **rate},
        plan={"precision": precision, "micro": micro, **compiles},
    )
    compiled = "compiled, with our kernels; " if compiles else ""
    return sized, (
        f"{because}; {compiled}a micro-batch of {micro} is the largest that fits; "
        "the text is bytes, of which GPT-2's vocabulary has room for more than enough"
    )


def largest_micro(device: torch.device, words: str) -> int | None:
    """The largest micro-batch whose forecast leaves some memory free; None where none does."""
    try:
        cluster = cluster_for(device)
    except LookupError:  # a GPU that the device table does not know
        room = device_memory_bytes(device) or 0
        return MICRO_BATCHES[-1] if room >= ROOM_BYTES else None
    return next((micro for micro in MICRO_BATCHES if fits(cluster, device, words, micro)), None)


def fits(cluster: Cluster, device: torch.device, words: str, micro: int) -> bool:
    facts = find_facts(GPU_MODEL, GPU_SEQUENCE)
    plan = Plan.parse(f"{words} micro={micro} batch={GPU_BATCH}").settle(1)
    needed = forecast(facts, plan, cluster).memory.peak_bytes
    return needed < FILL * (device_memory_bytes(device) or 0)
