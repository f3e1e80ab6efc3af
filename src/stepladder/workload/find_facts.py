"""Finding a model's facts by text: a preset, a shape, a config.json or a ResNet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepladder.errors import PlanError, nearest

from .convnet import RESNETS, facts_of_resnet
from .facts import Facts
from .huggingface_config import read_config, shape_of_config
from .presets import PRESETS, find_shape
from .shape import check_shape
from .transformer import facts_of_shape


def facts_of_config(config: Mapping[str, Any], sequence: int | None = None) -> Facts:
    """Count what a Hugging Face config describes, on sequences of that length."""
    shape = check_shape(shape_of_config(config))
    return facts_of_shape(shape, sequence, name=str(config.get("model_type", shape.family)))


def find_facts(text: str, sequence: int | None = None) -> Facts:
    """Count the workload that a text names, on sequences of that length."""
    if text in RESNETS:
        return facts_of_resnet(text)
    if text.endswith(".json") or Path(text, "config.json").is_file():
        path = Path(text) if text.endswith(".json") else Path(text, "config.json")
        return facts_of_shape(read_config(path), sequence, name=path.parent.name or str(path))
    if text not in PRESETS and ":" not in text:
        remedy = nearest(text, [*PRESETS, *RESNETS])
        raise PlanError("model", f"'{text}' is not a known model", remedy)
    return facts_of_shape(find_shape(text), sequence, name=text)
