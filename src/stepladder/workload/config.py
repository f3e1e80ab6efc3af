"""A shape read from a Hugging Face `config.json`: the same numbers under their names there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepladder.errors import PlanError

from .shape import Shape, check_shape

LLAMA = {  # our name: theirs
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
}
GPT = {"layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "vocab": "vocab_size"}


def read_config(path: str | Path) -> Shape:
    """The shape that a config.json describes."""
    try:
        table = json.loads(Path(path).read_text())
    except (OSError, ValueError) as broken:
        remedy = "Name a config.json of a Hugging Face model."
        raise PlanError("model", f"{path} cannot be read ({broken})", remedy) from broken
    if not isinstance(table, dict):
        raise PlanError("model", f"{path} holds no table of settings", "Name a config.json.")
    return shape_of_config(table)


def shape_of_config(table: Mapping[str, Any]) -> Shape:
    """The shape that a config's settings describe."""
    names = GPT if "n_embd" in table else LLAMA
    missing = [theirs for theirs in names.values() if not isinstance(table.get(theirs), int)]
    if missing:
        kind = table.get("model_type", "this model")
        remedy = "Write the shape out, such as llama:layers=32,hidden=4096,heads=32."
        raise PlanError("model", f"the config of {kind} has no {', '.join(missing)}", remedy)
    numbers = {ours: int(table[theirs]) for ours, theirs in names.items()}
    if names is GPT:
        ffn, length = table.get("n_inner") or 4 * numbers["hidden"], table.get("n_positions", 1024)
        kv_heads, tied = numbers["heads"], table.get("tie_word_embeddings", True)
        shape = Shape("gpt", **numbers, kv_heads=kv_heads, ffn=ffn, sequence=length, tied=tied)
        return check_shape(shape)
    kv_heads = table.get("num_key_value_heads") or numbers["heads"]
    length, tied = (
        table.get("max_position_embeddings", 2048),
        table.get("tie_word_embeddings", False),
    )
    return check_shape(Shape("llama", **numbers, kv_heads=kv_heads, sequence=length, tied=tied))
