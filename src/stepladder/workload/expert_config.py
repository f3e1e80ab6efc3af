"""Mixture-of-experts settings of a Hugging Face config.json, and parameters that few models have.

Models name the same things differently and place them differently, so only those whose count is
known to be that of the real module are read; a test builds each of them. Two are not among them
though their parameters could be: of Llama 4 transformers sends every token through all experts, and
gpt-oss attends with sinks, which writes every score down.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepladder.errors import PlanError

from .shape import Shape

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_k")
EXPERT_NUMBERS = (
    *EXPERTS, *ACTIVE, "moe_intermediate_size", "shared_expert_intermediate_size",
    "n_shared_experts", "first_k_dense_replace", "decoder_sparse_step",
)  # fmt: skip
READ = ("mixtral", "granitemoe", "olmoe", "qwen2_moe", "qwen3_moe", "glm4_moe", "dots1")
REMEDY = "Describe the module itself: sl.describe(module, sequence=...) traces it."

BIASED = ("qwen2", "qwen2_moe")  # queries, keys and values, whatever the config says
HEAD_NORMS = ("qwen3", "qwen3_moe", "dots1")  # of one head's width
WIDE_NORMS = ("olmoe", "olmo2")  # of all heads' width


def first_number(table: Mapping[str, Any], *names: str) -> int:
    """The first of these settings that is a number, else 0."""
    return next((v for name in names if type(v := table.get(name)) is int and v > 0), 0)


def num_experts(table: Mapping[str, Any]) -> int:
    """The number of experts; a single one counts as a dense MLP."""
    found = first_number(table, *EXPERTS)
    return found if found > 1 else 0


def mixture_of(table: Mapping[str, Any]) -> dict[str, int]:
    """The shape's settings for experts; empty for a dense model."""
    kind, experts = str(table.get("model_type", "this model")), num_experts(table)
    if not experts:
        return {}
    if kind not in READ:
        problem = f"the config of {kind} has {experts} experts, and only those of {', '.join(READ)}"
        raise PlanError("model", f"{problem} are known to be counted right", REMEDY)
    active = first_number(table, *ACTIVE)
    if not active:
        problem = f"the config of {kind} has {experts} experts and no {ACTIVE[0]}"
        raise PlanError("model", problem, "Write to how many of them a token goes.")
    numbers = {"experts": experts, "active": active, **widths_of(table)}
    return {**numbers, **expert_layers(table, kind)}


def widths_of(table: Mapping[str, Any]) -> dict[str, int]:
    """Hidden widths of an expert and of the shared MLP."""
    inside = first_number(table, "intermediate_size")
    width = first_number(table, "moe_intermediate_size") or inside
    beside = first_number(table, "shared_expert_intermediate_size")
    beside = beside or first_number(table, "n_shared_experts") * width
    return {"expert_ffn": 0 if width == inside else width, "shared_ffn": beside}


def expert_layers(table: Mapping[str, Any], kind: str) -> dict[str, int]:
    """Which layers have experts: all but the first `dense`, or every n-th."""
    every = first_number(table, "decoder_sparse_step")
    every = 0 if every == 1 else every
    without = table.get("mlp_only_layers") or []
    dense = len(without) if isinstance(without, list) else 0
    first = without == list(range(dense))
    dense = first_number(table, "first_k_dense_replace") or dense
    if not first or table.get("moe_layer_freq", 1) != 1:
        problem = f"the config of {kind} has experts in layers by a list of their numbers"
        raise PlanError("model", problem, REMEDY)
    if dense and kind == "qwen2_moe":
        problem = f"the config of {kind} has a gate beside experts and {dense} layers without any"
        raise PlanError("model", problem, REMEDY)
    return {"dense": dense, "every": every}


def extra_of(table: Mapping[str, Any], shape: Shape) -> int:
    """Parameters of a block other than its matrices and its two norms."""
    if not shape.gated:
        return 0
    kind, queries = table.get("model_type"), shape.query_width
    keys = shape.kv_heads * shape.head_width
    biases = queries + 2 * keys if kind in BIASED or table.get("attention_bias") else 0
    if table.get("attention_bias") and kind != "glm4_moe":
        biases += shape.hidden
    chosen = kind == "glm4_moe" and table.get("use_qk_norm")
    norms = 2 * shape.head_width if kind in HEAD_NORMS or chosen else 0
    norms = queries + keys if kind in WIDE_NORMS else norms
    gate = shape.hidden if kind == "qwen2_moe" else 0  # of the MLP that every token goes to
    return norms + biases + gate
