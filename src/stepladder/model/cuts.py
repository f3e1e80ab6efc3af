"""Where a foreign block may be cut for tensor parallelism: which linears by column, which by row.

A pair of cuts is right when columns feed a row: the column-cut linears' outputs, each rank with its
own part, are the row-cut linear's input. A Hugging Face model says so itself in
`base_model_tp_plan`; otherwise names and shapes must agree, one parent module at a time. One matrix
that holds query, key and value together is never cut: its columns are not heads.
"""

from __future__ import annotations

import re

from torch import nn

COLUMN = {"q_proj", "k_proj", "v_proj", "query", "key", "value", "wq", "wk", "wv"}
COLUMN |= {"gate_proj", "up_proj", "gate", "up", "fc1", "w1", "w3", "linear1"}
ROW = {"o_proj", "out_proj", "out", "wo", "down_proj", "down", "fc2", "w2", "linear2"}
KINDS = {"colwise": "column", "rowwise": "row"}


def find_cuts(module: nn.Module, block: nn.Module) -> dict[str, str]:
    """Name inside a block → "column" or "row"; empty where nothing can be cut safely."""
    return declared_cuts(module, block) or shown_cuts(block)


def declared_cuts(module: nn.Module, block: nn.Module) -> dict[str, str]:
    plan = getattr(getattr(module, "config", None), "base_model_tp_plan", None) or {}
    parts = dict(block.named_modules())
    cuts = {}
    for pattern, kind in plan.items():
        name = re.split(r"\*\.", pattern, maxsplit=1)[-1]  # what follows the block's number
        if kind in KINDS and isinstance(parts.get(name), nn.Linear):
            cuts[name] = KINDS[kind]
    return cuts


def shown_cuts(block: nn.Module) -> dict[str, str]:
    cuts: dict[str, str] = {}
    for prefix, parent in block.named_modules():
        linears = {n: c for n, c in parent.named_children() if isinstance(c, nn.Linear)}
        kinds = kinds_by_name(linears) or kinds_by_shape(linears)
        cuts.update({f"{prefix}.{name}".lstrip("."): kind for name, kind in kinds.items()})
    return cuts


def kinds_by_name(linears: dict[str, nn.Linear]) -> dict[str, str]:
    """By names, when every linear here has a known one and every row has columns to feed it."""
    kinds = {n: "column" if n in COLUMN else "row" for n in linears if n in COLUMN | ROW}
    complete = len(kinds) == len(linears) and {"column", "row"} == set(kinds.values())
    widths = {linears[n].out_features for n, kind in kinds.items() if kind == "column"}
    fed = all(linears[n].in_features in widths for n, kind in kinds.items() if kind == "row")
    return kinds if complete and fed else {}


def kinds_by_shape(linears: dict[str, nn.Linear]) -> dict[str, str]:
    """By shapes: alike linears that widen or narrow, then one that undoes it."""
    *first, last = [(c.in_features, c.out_features) for c in linears.values()] or [(0, 0)]
    undone = bool(first) and set(first) == {(last[1], last[0])} and last[0] != last[1]
    if not undone:
        return {}
    *columns, row = linears
    return {**dict.fromkeys(columns, "column"), row: "row"}
