"""Tensor cuts: which linears of a block tensor parallelism cuts by column and which by row.

Cuts are right if columns feed a row: the outputs of column-cut linears, a part on each rank, are
the input of a row-cut linear. A Hugging Face model declares its cuts in `base_model_tp_plan`, and
GPT-2 by its Conv1D linears. Otherwise they are guessed from names and shapes, one parent module at
a time and then across them (BERT keeps an attention's output apart from its queries), and the rung
verifies the guess by a trial. A fused query-key-value matrix has columns that
are not heads; it is cut in three ("fused") if its owner stores the split width in an attribute, and
never by a guess. A linear with adapters (peft's LoRA) counts as its base layer.
"""

from __future__ import annotations

import re

from torch import Tensor, nn

from stepladder.seam.modules import children_of

COLUMN_NAMES = {"q_proj", "k_proj", "v_proj", "query", "key", "value", "wq", "wk", "wv"}
COLUMN_NAMES |= {"q", "k", "v", "gate_proj", "up_proj", "gate", "up", "fc1", "w1", "w3", "linear1"}
COLUMN_NAMES |= {"q_lin", "k_lin", "v_lin", "lin1", "query_proj", "key_proj", "value_proj"}
ROW_NAMES = {"o_proj", "out_proj", "out", "wo", "o", "down_proj", "down", "fc2", "w2", "linear2"}
ROW_NAMES |= {"out_lin", "lin2", "dense"}
QUERY_NORM = re.compile(r"(q|query)_?(norm|layernorm|ln)")
BY_HEAD = "query_key_value"  # a head's three side by side (Bloom): whole heads are a column cut
TP_PLAN_STYLES = {"colwise": "column", "rowwise": "row"}
CONV1D = {"c_attn": "fused", "c_fc": "column", "c_proj": "row"}


def find_cuts(module: nn.Module, block: nn.Module) -> dict[str, str]:
    """The cut of each linear by its name in the block: "column", "row" or "fused"."""
    found = declared_cuts(module, block) or guessed_cuts(block)
    whole = [name for name, part in block.named_modules() if normalises_whole(part)]
    return {name: kind for name, kind in found.items() if name.rpartition(".")[0] not in whole}


def normalises_whole(attention: nn.Module) -> bool:
    """Whether queries are normalised over all heads together, as OLMo has it: no rank with some of
    the heads knows their mean square."""
    parts = dict(attention.named_children())
    linears = {name: one for name, one in parts.items() if isinstance(one, nn.Linear)}
    widths = {one.out_features for name, one in linears.items() if name.startswith("q")}
    norms = [part for name, part in parts.items() if QUERY_NORM.match(name)]
    weights = [getattr(norm, "weight", None) for norm in norms]
    return any(isinstance(w, Tensor) and w.dim() == 1 and w.numel() in widths for w in weights)


def declared_cuts(module: nn.Module, block: nn.Module) -> dict[str, str]:
    """The cuts that the model itself declares."""
    plan = getattr(getattr(module, "config", None), "base_model_tp_plan", None) or {}
    parts = dict(block.named_modules())
    cuts = {}
    for pattern, kind in plan.items():
        name = re.split(r"\*\.", pattern, maxsplit=1)[-1]  # what follows the block's number
        if kind in TP_PLAN_STYLES and isinstance(base_layer(parts.get(name)), nn.Linear):
            cuts[name] = TP_PLAN_STYLES[kind]
    return cuts or conv1d_cuts(block)


def conv1d_cuts(block: nn.Module) -> dict[str, str]:
    """The cuts of GPT-2's family, whose linears store their weight as (in, out)."""
    cuts = {}
    for name, part in block.named_modules():
        parent, _, end = name.rpartition(".")
        owner = block.get_submodule(parent)
        if not is_transposed(base_layer(part)) or end not in CONV1D:
            continue
        if "c_attn" in dict(owner.named_children()) and not hasattr(owner, "split_size"):
            continue  # the module could not learn that its query, key and value are narrower
        cuts[name] = CONV1D[end]
    return cuts


def base_layer(part: nn.Module | None) -> nn.Module | None:
    """The layer that an adapter wraps; the part itself if it has no adapter."""
    return part if part is None else children_of(part).get("base_layer", part)


def is_transposed(part: nn.Module | None) -> bool:
    """Whether a linear stores its weight as (in, out), as Hugging Face's Conv1D does."""
    return type(part).__name__ == "Conv1D" and isinstance(getattr(part, "weight", None), Tensor)


def guessed_cuts(block: nn.Module) -> dict[str, str]:
    cuts: dict[str, str] = {}
    for prefix, parent in block.named_modules():
        found = {name: base_layer(child) for name, child in parent.named_children()}
        linears = {name: one for name, one in found.items() if isinstance(one, nn.Linear)}
        kinds = kinds_by_name(linears) or kinds_by_shape(linears)
        cuts.update({f"{prefix}.{name}".lstrip("."): kind for name, kind in kinds.items()})
    return {**cuts, **kinds_across(block, cuts)}


def kinds_across(block: nn.Module, cuts: dict[str, str]) -> dict[str, str]:
    """Pairs whose linears have different parents, from those that are not cut yet, in order.

    Columns are queries, keys and values by name, or one linear that widens; the next linear that
    undoes their shape is the row.
    """
    kinds: dict[str, str] = {}
    columns: dict[str, nn.Linear] = {}
    for name, part in block.named_modules():
        linear = base_layer(part)
        if name in cuts or not isinstance(linear, nn.Linear) or name.endswith(".base_layer"):
            continue
        named = name.rpartition(".")[2] in COLUMN_NAMES
        first = next(iter(columns.values()), linear)
        if named and linear.in_features == first.in_features:
            columns[name] = linear
        elif columns and undoes(linear, columns):
            kinds.update({**dict.fromkeys(columns, "column"), name: "row"})
            columns = {}
        else:
            widens = named or linear.out_features > linear.in_features
            columns = {name: linear} if widens else {}
    return kinds


def undoes(row: nn.Linear, columns: dict[str, nn.Linear]) -> bool:
    """Whether a linear takes what the columns give, back to their own input's width."""
    widths = {column.out_features for column in columns.values()}
    back = all(column.in_features == row.out_features for column in columns.values())
    return back and row.in_features in widths


def kinds_by_name(linears: dict[str, nn.Linear]) -> dict[str, str]:
    """By names, if every linear here has a known one and every row has columns to feed it."""
    kinds = {
        n: "row" if n in ROW_NAMES else "column"
        for n in linears
        if n in COLUMN_NAMES | ROW_NAMES | {BY_HEAD}
    }
    complete = len(kinds) == len(linears) and {"column", "row"} == set(kinds.values())
    widths = {
        linears[n].out_features // (3 if n == BY_HEAD else 1)
        for n, kind in kinds.items()
        if kind == "column"
    }
    fed = all(linears[n].in_features in widths for n, kind in kinds.items() if kind == "row")
    return kinds if complete and fed else {}


def kinds_by_shape(linears: dict[str, nn.Linear]) -> dict[str, str]:
    """By shapes: linears of one shape, then one of the transposed shape."""
    *first, last = [(c.in_features, c.out_features) for c in linears.values()] or [(0, 0)]
    undone = bool(first) and set(first) == {(last[1], last[0])} and last[0] != last[1]
    if not undone:
        return {}
    *columns, row = linears
    return {**dict.fromkeys(columns, "column"), row: "row"}
