"""LoRA in words: a module frozen, with peft's pairs of narrow matrices beside some of its linears.

`r=8 alpha=16 dropout=0.05 matrices=q_proj,v_proj`; without matrices, beside every linear but the
one that answers. Whoever needs more than that gives `climb` what peft returns.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any

import torch
from torch import nn

from stepladder.errors import ModelError, PlanError, nearest

TASKS = {"ForCausalLM": "CAUSAL_LM", "LMHeadModel": "CAUSAL_LM"}  # by how a class's name ends


@dataclass(frozen=True, slots=True)
class Lora:
    r: int = 8  # numbers that the narrow matrices leave
    alpha: float = 16.0  # what they add is multiplied by alpha / r
    dropout: float = 0.0
    matrices: tuple[str, ...] = ()  # how the names of the linears end; none: all

    @classmethod
    def parse(cls, text: str) -> Lora:
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
        return made


def add_lora(module: nn.Module, text: str, seed: int = 0) -> nn.Module:
    """The module frozen, inside what trains the matrices beside its linears."""
    how = Lora.parse(text)
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
            return peft.get_peft_model(module, config)
    except ValueError as wrong:
        problem = f"'{text}' does not suit {name} ({str(wrong).partition(chr(10))[0]})"
        raise PlanError("model.lora", problem, "Name linears of the model in matrices=.") from wrong
