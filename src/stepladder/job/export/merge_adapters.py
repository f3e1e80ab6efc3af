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
from stepladder.model.nf4_linear import dequantise

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
        if ".lora_" in name or name.endswith(".scales"):
            continue
        if name.endswith(".codes"):
            yield whole_source(reader, name, adapter, settings, dtype)
            continue
        source = concatenated_source(reader, name, (name,), dtype)
        stem, found, _ = name.rpartition(f"{BASE}weight")
        pair = [f"{stem}.lora_{letter}.{adapter}.weight" for letter in "AB"]
        make = source.make
        if found and pair[0] in names:
            make = partial(merge, reader, name, pair, settings, source.dtype)
        final = name.removeprefix(PREFIX).replace(BASE, ".")
        yield TensorSource(final, source.dtype, source.shape, make)


def whole_source(
    reader: CheckpointReader,
    name: str,
    adapter: str,
    settings: Mapping[str, Any],
    dtype: torch.dtype | None,
) -> TensorSource:
    """A weight that was held in 4 bits, whole, with its adapter if it has one."""
    shape, stem = reader.manifest.tensors[f"model/{name}"].shape, name.removesuffix(".codes")
    pair = [f"{stem.removesuffix('.base_layer')}.lora_{one}.{adapter}.weight" for one in "AB"]
    adapted = f"model/{pair[0]}" in reader.manifest.tensors
    kind = dtype or torch.float32
    make = partial(merge, reader, name, pair if adapted else [], settings, kind)
    final = f"{stem}.weight".removeprefix(PREFIX).replace(BASE, ".")
    return TensorSource(final, kind, (shape[0], 2 * shape[1]), make)


def read_weight(reader: CheckpointReader, name: str) -> Tensor:
    weight = reader.read(f"model/{name}")
    if not name.endswith(".codes"):
        return weight
    scales = reader.read(f"model/{name.removesuffix('codes')}scales")
    return dequantise(weight, scales, torch.float32)


def merge(
    reader: CheckpointReader,
    name: str,
    pair: list[str],
    settings: Mapping[str, Any],
    dtype: torch.dtype,
) -> Tensor:
    """One weight with its adapter added."""
    weight = read_weight(reader, name)
    if not pair:
        return weight.to(dtype)
    down, up = (reader.read(f"model/{one}") for one in pair)
    rank = down.shape[0]
    scale = settings["lora_alpha"] / (math.sqrt(rank) if settings.get("use_rslora") else rank)
    added = up @ down
    turned = settings.get("fan_in_fan_out") or added.shape != weight.shape
    return weight.add_((added.T if turned else added) * scale).to(dtype)
