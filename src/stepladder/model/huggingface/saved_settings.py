"""The settings of a Hugging Face model and of peft adapters, as JSON values for a checkpoint.

Other programs need a model's config, and an adapter's, along with the tensors. Both are saved with
every checkpoint, so that it can be converted later on a machine without transformers or peft.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from torch import nn

from stepladder.workload import Shape


def model_settings(module: nn.Module) -> dict[str, Any]:
    """The model's config, and those of its adapters by name; None if it has none."""
    model = base_model(module)
    config, adapters = getattr(model, "config", None), getattr(module, "peft_config", None)
    return {
        "config": config_settings(model, config) if hasattr(config, "to_json_string") else None,
        "adapters": {name: to_json_value(one.to_dict()) for name, one in adapters.items()}
        if isinstance(adapters, Mapping)
        else None,
    }


def base_model(module: nn.Module) -> nn.Module:
    """The model inside peft's wrapper; the module itself if it has none."""
    inner = getattr(module, "get_base_model", None)
    return inner() if callable(inner) else module


def builtin_shape(module: nn.Module) -> Shape | None:
    """The shape of a built-in language model; None for others, and for one with adapters."""
    shape = getattr(module, "shape", None)
    return shape if isinstance(shape, Shape) and base_model(module) is module else None


def config_settings(module: nn.Module, config: Any) -> dict[str, Any]:
    settings = json.loads(config.to_json_string())
    return {**settings, "architectures": [type(module).__name__]}


def to_json_value(value: Any) -> Any:
    """Convert sets, tuples and enums to values that JSON has."""
    if isinstance(value, Mapping):
        return {str(key): to_json_value(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(to_json_value(one) for one in value)
    if isinstance(value, list | tuple):
        return [to_json_value(one) for one in value]
    return value.value if isinstance(value, Enum) else value


def adapter_key(name: str, adapter: str) -> str | None:
    """A tensor's name in this adapter's file; None if it does not belong to the adapter."""
    word = re.escape(adapter)
    if found := re.fullmatch(rf"(.*\.lora_\w+)\.{word}(\.\w+)?", name):
        stem, end = found[1], found[2] or ""
        return stem if stem.endswith("lora_magnitude_vector") else stem + end
    whole = f".modules_to_save.{adapter}."
    return name.replace(whole, ".") if whole in name else None
