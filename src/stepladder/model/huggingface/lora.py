"""LoRA from a recipe: a frozen module with peft's low-rank adapters on some of its linears.

`r=8 alpha=16 dropout=0.05 matrices=q_proj,v_proj`; without matrices, on every linear but the head.
`base=nf4` holds the frozen linears in 4 bits (QLoRA), but for the head.
For other settings, pass peft's module to `climb`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any

import torch
from torch import nn

from stepladder.errors import ModelError, PlanError, nearest
from stepladder.model.nf4_linear import BLOCK, quantise_frozen_linears

BASES = ("nf4",)
FOREIGN_BASES = ("bitsandbytes", "torchao")
TASKS = {"ForCausalLM": "CAUSAL_LM", "LMHeadModel": "CAUSAL_LM"}  # by the end of a class's name


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The settings of `model.lora` in a recipe."""

    r: int = 8  # the rank of the adapters
    alpha: float = 16.0  # their output is multiplied by alpha / r
    dropout: float = 0.0
    matrices: tuple[str, ...] = ()  # ends of the linears' names; empty: all
    base: str = ""  # nf4: the frozen linears in 4 bits

    @classmethod
    def parse(cls, text: str) -> LoraSettings:
        made = cls()
        for word in text.split():
            key, _, value = word.partition("=")
            known = [field.name for field in fields(cls)]
            if key not in known:
                raise PlanError("model.lora", f"'{key}' is not a setting", nearest(key, known))
            try:
                kind = type(getattr(made, key))
                read: Any = tuple(value.split(",")) if kind is tuple else kind(value)
            except ValueError:
                read = None
            low = isinstance(read, int | float) and read < 0
            if low or (not read and not (key == "dropout" and read == 0)):
                problem = f"'{word}' gives no {key}"
                raise PlanError("model.lora", problem, "Write such as r=8 alpha=16.")
            made = replace(made, **{key: read})
        if made.base in FOREIGN_BASES:
            problem = f"{made.base} keeps 4-bit matrices in classes that ZeRO here cannot slice"
            raise PlanError("model.lora", problem, "Write base=nf4, the same type.")
        if made.base not in ("", *BASES):
            raise PlanError("model.lora", f"'{made.base}' is no base", nearest(made.base, BASES))
        return made


def add_lora(module: nn.Module, text: str, seed: int = 0) -> nn.Module:
    """Freeze the module and add LoRA adapters to its linears."""
    how = LoraSettings.parse(text)
    try:
        peft = import_module("peft")
    except ImportError as missing:
        problem = "LoRA needs the package 'peft', which is not installed"
        raise ModelError("model.lora", problem, "Install it: pip install 'stepladder[hf]'") from (
            missing
        )
    name = type(module).__name__
    task = next((task for end, task in TASKS.items() if name.endswith(end)), None)
    try:
        config = peft.LoraConfig(
            r=how.r,
            lora_alpha=how.alpha,
            lora_dropout=how.dropout,
            target_modules=list(how.matrices) or "all-linear",
            task_type=task,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            adapted = peft.get_peft_model(module, config)
    except ValueError as wrong:
        problem = f"'{text}' does not suit {name} ({str(wrong).partition(chr(10))[0]})"
        raise PlanError("model.lora", problem, "Name linears of the model in matrices=.") from wrong
    if how.base and not quantise_frozen_linears(adapted, skip=head_of(module)):
        problem = f"base={how.base} found no frozen linear of {name} with rows of whole blocks"
        raise ModelError("model.lora", problem, f"Leave it out: rows are cut into {BLOCK} numbers.")
    return adapted


def head_of(module: nn.Module) -> nn.Module | None:
    """The output layer of a Hugging Face model, which has no adapter and stays whole."""
    ask = getattr(module, "get_output_embeddings", None)
    return ask() if callable(ask) else None
