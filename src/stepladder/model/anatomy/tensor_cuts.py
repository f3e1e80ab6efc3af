"""Where a foreign block may be cut for tensor parallelism: which linears by column, which by row.

A pair of cuts is right when columns feed a row: the column-cut linears' outputs, each rank with its
own part, are the row-cut linear's input. A Hugging Face model says so itself in
`base_model_tp_plan`, GPT-2 by its linears of a kind nobody else uses; these cuts are declared.
Otherwise names and shapes must agree, one parent module at a time: a guess, which the rung tries
before it trusts it. A matrix that holds query, key and value side by side has columns that are not
heads; it is cut in three ("fused") where its owner keeps the width it splits by in an attribute,
and never by a guess. A linear that carries adapters (peft's LoRA) counts as the linear it carries.
"""

from __future__ import annotations

import re

from torch import Tensor, nn

from stepladder.seam.modules import children_of

COLUMN = {"q_proj", "k_proj", "v_proj", "query", "key", "value", "wq", "wk", "wv", "q", "k", "v"}
COLUMN |= {"gate_proj", "up_proj", "gate", "up", "fc1", "w1", "w3", "linear1"}
ROW = {"o_proj", "out_proj", "out", "wo", "o", "down_proj", "down", "fc2", "w2", "linear2"}
KINDS = {"colwise": "column", "rowwise": "row"}
CONV1D = {"c_attn": "fused", "c_fc": "column", "c_proj": "row"}


def find_cuts(module: nn.Module, block: nn.Module) -> dict[str, str]:
    """Name inside a block → "column", "row" or "fused"; empty where nothing can be cut safely."""
    return declared_cuts(module, block) or shown_cuts(block)


def declared_cuts(module: nn.Module, block: nn.Module) -> dict[str, str]:
    """What the model itself says may be cut."""
    plan = getattr(getattr(module, "config", None), "base_model_tp_plan", None) or {}
    parts = dict(block.named_modules())
    cuts = {}
    for pattern, kind in plan.items():
        name = re.split(r"\*\.", pattern, maxsplit=1)[-1]  # what follows the block's number
        if kind in KINDS and isinstance(carried(parts.get(name)), nn.Linear):
            cuts[name] = KINDS[kind]
    return cuts or conv1d_cuts(block)


def conv1d_cuts(block: nn.Module) -> dict[str, str]:
    """Those of GPT-2's family, whose linears store their weight as (in, out)."""
    cuts = {}
    for name, part in block.named_modules():
        parent, _, end = name.rpartition(".")
        owner = block.get_submodule(parent)
        if not is_transposed(carried(part)) or end not in CONV1D:
            continue
        if "c_attn" in dict(owner.named_children()) and not hasattr(owner, "split_size"):
            continue  # nobody would know that a rank's query, key and value are narrower
        cuts[name] = CONV1D[end]
    return cuts


def carried(part: nn.Module | None) -> nn.Module | None:
    """The module beside which a part adds what its adapters make; without any, the part itself."""
    return part if part is None else children_of(part).get("base_layer", part)


def is_transposed(part: nn.Module | None) -> bool:
    """Whether a linear stores its weight as (in, out), as Hugging Face's Conv1D does."""
    return type(part).__name__ == "Conv1D" and isinstance(getattr(part, "weight", None), Tensor)


def shown_cuts(block: nn.Module) -> dict[str, str]:
    cuts: dict[str, str] = {}
    for prefix, parent in block.named_modules():
        found = {name: carried(child) for name, child in parent.named_children()}
        linears = {name: one for name, one in found.items() if isinstance(one, nn.Linear)}
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
