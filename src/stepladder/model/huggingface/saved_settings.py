"""What a module of Hugging Face's or peft's says of itself, as plain values for a checkpoint.

Tensors alone do not tell other programs what they belong to: a model's config does, and an
adapter's. Both are kept with every checkpoint, so that it can be written in their layout later, on
a machine that has neither library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from torch import nn

from stepladder.workload import Shape


def noted(module: nn.Module) -> dict[str, Any]:
    """The model's config and those of its adapters by name; None where it has none."""
    model = bare(module)
    config, adapters = getattr(model, "config", None), getattr(module, "peft_config", None)
    return {
        "config": their_settings(model, config) if hasattr(config, "to_json_string") else None,
        "adapters": {name: plain(one.to_dict()) for name, one in adapters.items()}
        if isinstance(adapters, Mapping)
        else None,
    }


def bare(module: nn.Module) -> nn.Module:
    """The model inside what peft puts around it, which may be called anything."""
    inner = getattr(module, "get_base_model", None)
    return inner() if callable(inner) else module


def own_shape(module: nn.Module) -> Shape | None:
    """The shape by which a built-in language model is known; none of one that has adapters."""
    shape = getattr(module, "shape", None)
    return shape if isinstance(shape, Shape) and bare(module) is module else None


def their_settings(module: nn.Module, config: Any) -> dict[str, Any]:
    settings = json.loads(config.to_json_string())
    return {**settings, "architectures": [type(module).__name__]}


def plain(value: Any) -> Any:
    """A value as JSON knows it."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(plain(one) for one in value)
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.value if isinstance(value, Enum) else value


def adapter_key(name: str, adapter: str) -> str | None:
    """A tensor's name in a file of this adapter's; None where it is not of the adapter."""
    word = re.escape(adapter)
    if found := re.fullmatch(rf"(.*\.lora_\w+)\.{word}(\.\w+)?", name):
        stem, end = found[1], found[2] or ""
        return stem if stem.endswith("lora_magnitude_vector") else stem + end
    whole = f".modules_to_save.{adapter}."
    return name.replace(whole, ".") if whole in name else None
