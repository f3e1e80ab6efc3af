"""Data of generated problems: the global batches of every step, and one to evaluate on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]


def make_batches(module: dict[str, Any], data: dict[str, Any], seed: int) -> list[Pair]:
    """The global batch (inputs, targets) of each step; the last one is for evaluation."""
    draw = torch.Generator().manual_seed(seed + 1)
    made = [make_batch(module, data, rows, draw) for rows in (*data["rows"], data["evaluated"])]
    if data["feed"] != "ragged":
        return made
    lengths = torch.Generator().manual_seed(data["lengths"])
    return [shorten(*batch, lengths) for batch in made]


def shorten(inputs: Tensor, targets: Tensor, draw: torch.Generator) -> Pair:
    """Rows of unequal length, padded at their ends to the longest: with 0, and targets ignored."""
    lengths = torch.randint(1, inputs.shape[1] + 1, (len(inputs), 1), generator=draw)
    padding = torch.arange(inputs.shape[1]) >= lengths
    inputs, targets = inputs.masked_fill(padding, 0), targets.masked_fill(padding, -100)
    longest = int(lengths.max())
    return inputs[:, :longest], targets[:, :longest]


def unpadded(inputs: Tensor, targets: Tensor) -> Pair:
    """One row as it was before it was padded."""
    length = int((targets != -100).sum())
    return inputs[:length], targets[:length]


def make_batch(
    module: dict[str, Any], data: dict[str, Any], rows: int, draw: torch.Generator
) -> Pair:
    dtype = getattr(torch, module.get("dtype", "float32"))
    length, kind = module["length"], module["kind"]
    if kind == "tokens":
        inputs = torch.randint(0, module["vocab"], (rows, length), generator=draw)
    elif kind == "image":
        side = data.get("side", 4)
        inputs = torch.randn(rows, module["features"], side, side, generator=draw).to(dtype)
        length = side * side
    elif kind == "frames":
        inputs = torch.randn(rows, length, module["features"], generator=draw).to(dtype)
    else:
        inputs = torch.randn(rows, module["features"], generator=draw).to(dtype)
    shape = (rows,) if module["pooled"] or kind == "vector" else (rows, length)
    if not data["classes"]:
        targets = torch.randn(*shape, module["classes"], generator=draw).to(dtype)
        return inputs, targets
    targets = torch.randint(0, module["classes"], shape, generator=draw)
    return inputs, hide(targets, data, draw)


def hide(targets: Tensor, data: dict[str, Any], draw: torch.Generator) -> Tensor:
    """The targets with some of them ignored: the ends of rows, whole rows, or single ones."""
    how, mark = data.get("ignored", "none"), data.get("mark", -100)
    if how == "none":
        return targets
    rows, many = len(targets), targets.dim() > 1
    if how == "ragged" and many:
        lengths = torch.randint(1, targets.shape[1] + 1, (rows, 1), generator=draw)
        hidden = torch.arange(targets.shape[1]) >= lengths
    elif how == "rows":
        hidden = torch.rand(rows, generator=draw) < 0.4
        hidden = hidden.view(-1, *[1] * (targets.dim() - 1)).expand_as(targets)
    else:
        hidden = torch.rand(targets.shape, generator=draw) < 0.3
    hidden = hidden.clone()
    hidden[0] = False  # a batch without any target has no loss
    return targets.masked_fill(hidden, mark)
