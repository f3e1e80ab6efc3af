"""Reading a transformer's shape from a Hugging Face `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepladder.errors import PlanError

from .expert_config import EXPERT_NUMBERS, REMEDY, extra_of, mixture_of
from .shape import Shape, check_shape

LLAMA = {  # our name: theirs
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
}
GPT = {"layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "vocab": "vocab_size"}

NUMBERS = (
    *LLAMA.values(), *GPT.values(), "n_inner", "n_positions", "num_key_value_heads", "head_dim",
    "max_position_embeddings", *EXPERT_NUMBERS,
)  # fmt: skip

UNGATED = ("gpt_neox", "gpt_neox_japanese", "phi", "starcoder2")  # two matrices in the MLP
OTHERS = (  # that read in both directions, or images, or with two rows of blocks
    "bert", "roberta", "xlm-roberta", "distilbert", "albert", "electra", "deberta", "deberta-v2",
    "modernbert", "vit", "deit", "beit", "dinov2", "swin", "clip", "siglip", "t5", "mt5", "bart",
    "whisper",
)  # fmt: skip


def read_config(path: str | Path) -> Shape:
    """The shape that a config.json describes."""
    try:
        table = json.loads(Path(path).read_text())
    except (OSError, ValueError) as broken:
        remedy = "Name a config.json of a Hugging Face model."
        why = getattr(broken, "strerror", None) or broken
        raise PlanError("model", f"{path} cannot be read ({why})", remedy) from broken
    if not isinstance(table, dict):
        raise PlanError("model", f"{path} holds no table of settings", "Name a config.json.")
    return shape_of_config(table)


def shape_of_config(table: Mapping[str, Any]) -> Shape:
    """The shape that a config's settings describe; what no shape can say is refused."""
    refuse_others(table)
    refuse_unreadable(table)
    names = GPT if "n_embd" in table else LLAMA
    missing = [theirs for theirs in names.values() if not table.get(theirs)]
    if missing:
        remedy = "Write the shape out, such as llama:layers=32,hidden=4096,heads=32."
        raise PlanError(
            "model", f"the config of {kind_of(table)} has no {', '.join(missing)}", remedy
        )
    numbers = {ours: int(table[theirs]) for ours, theirs in names.items()}
    if names is GPT:
        ffn, length = (
            table.get("n_inner") or 4 * numbers["hidden"],
            table.get("n_positions") or 1024,
        )
        kv_heads, tied = numbers["heads"], table.get("tie_word_embeddings") is not False
        shape = Shape("gpt", **numbers, kv_heads=kv_heads, ffn=ffn, sequence=length, tied=tied)
        return check_shape(shape)
    kv_heads = table.get("num_key_value_heads") or numbers["heads"]
    length, tied = (
        table.get("max_position_embeddings") or 2048,
        table.get("tie_word_embeddings") is True,
    )
    head = int(table.get("head_dim") or 0)
    head = 0 if head * numbers["heads"] == numbers["hidden"] else head
    family = "gpt" if table.get("model_type") in UNGATED else "llama"
    numbers |= mixture_of(table)
    shape = Shape(family, **numbers, kv_heads=kv_heads, sequence=length, tied=tied, head=head)
    return check_shape(replace(shape, extra=extra_of(table, shape)))


def refuse_others(table: Mapping[str, Any]) -> None:
    """Refuse model families whose settings share names and mean something else."""
    if table.get("kv_lora_rank"):
        latent = f"kv_lora_rank={table['kv_lora_rank']}"
        problem = f"{kind_of(table)} attends by latent keys ({latent}), which a shape does not have"
        raise PlanError("model", problem, REMEDY)
    if table.get("model_type") in OTHERS or table.get("is_encoder_decoder"):
        problem = f"a {kind_of(table)} is not one row of decoder blocks, as a shape is"
        raise PlanError("model", problem, REMEDY)


def refuse_unreadable(table: Mapping[str, Any]) -> None:
    """Refuse settings that should be numbers and are not."""
    for name in NUMBERS:
        value = table.get(name)
        if value is not None and (type(value) is not int or value < 0):
            problem = f"the config of {kind_of(table)} has {name}={value!r}, which counts nothing"
            raise PlanError("model", problem, "Write a whole number.")


def kind_of(table: Mapping[str, Any]) -> str:
    return str(table.get("model_type", "this model"))
