"""Adapters added to the weights they were trained on: one model, under the base model's names.

A linear's merged weight is W + scale * B A, computed as peft computes it, one tensor at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stepladder.checkpoint import CheckpointReader, TensorSource
from stepladder.checkpoint.convert import concatenated_source
from stepladder.errors import RecordError

PREFIX, BASE = "base_model.model.", ".base_layer."
UNMERGED = ("use_dora", "lora_bias", "modules_to_save", "alpha_pattern", "rank_pattern")


def merged_tensors(reader: CheckpointReader, dtype: torch.dtype | None) -> list[TensorSource]:
    """Every tensor of the base model, with its adapter in it."""
    adapters = reader.manifest.state.get("adapters") or {}
    if len(adapters) != 1:
        problem = f"it holds {len(adapters)} adapters ({', '.join(adapters)})"
        raise RecordError("checkpoint", problem, "Write them with --to adapters.")
    ((adapter, settings),) = adapters.items()
    refuse_unmerged(settings)
    return sorted(sources(reader, adapter, settings, dtype), key=lambda one: one.name)


def refuse_unmerged(settings: Mapping[str, Any]) -> None:
    """Raise for adapters that do more than add a product of two matrices."""
    kind = str(settings.get("peft_type", "LORA"))
    other = next((key for key in UNMERGED if settings.get(key)), "" if kind == "LORA" else kind)
    if other:
        problem = f"its adapters use {other}, which is merged by peft only"
        remedy = "Write them with --to adapters; peft's merge_and_unload makes one model of both."
        raise RecordError("checkpoint", problem, remedy)


def sources(
    reader: CheckpointReader, adapter: str, settings: Mapping[str, Any], dtype: torch.dtype | None
) -> Iterator[TensorSource]:
    names = set(reader.manifest.names("model"))
    for name in names:
        if ".lora_" in name:
            continue
        source = concatenated_source(reader, name, (name,), dtype)
        stem, found, _ = name.rpartition(f"{BASE}weight")
        pair = [f"{stem}.lora_{letter}.{adapter}.weight" for letter in "AB"]
        make = source.make
        if found and pair[0] in names:
            make = partial(merge, reader, name, pair, settings, source.dtype)
        final = name.removeprefix(PREFIX).replace(BASE, ".")
        yield TensorSource(final, source.dtype, source.shape, make)


def merge(
    reader: CheckpointReader,
    name: str,
    pair: list[str],
    settings: Mapping[str, Any],
    dtype: torch.dtype,
) -> Tensor:
    """One weight with its adapter added."""
    weight = reader.read(f"model/{name}")
    down, up = (reader.read(f"model/{one}") for one in pair)
    rank = down.shape[0]
    scale = settings["lora_alpha"] / (math.sqrt(rank) if settings.get("use_rslora") else rank)
    added = up @ down
    turned = settings.get("fan_in_fan_out") or added.shape != weight.shape
    return weight.add_((added.T if turned else added) * scale).to(dtype)
