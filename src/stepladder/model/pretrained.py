"""Hugging Face models from files on this machine: built from a config, with weights or without.

Their own library builds the module and reads the weights, since it knows how each architecture
names and keeps them. Nothing is downloaded, and no code that comes with a model is run. Weights
that lack a tensor are refused: it would start from random numbers beside trained ones.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stepladder.errors import ModelError, PlanError, nearest

KINDS = ("AutoModelForCausalLM", "AutoModelForImageClassification")  # where no class is named
LENGTHS = ("max_position_embeddings", "n_positions")


def names_pretrained(text: str) -> bool:
    """Whether the text is a config.json, or a folder; one beside us that has a preset's name and
    no config in it does not count."""
    path = Path(text).expanduser()
    folder = path.is_dir() and ("/" in text or (path / "config.json").is_file())
    return text.endswith(".json") or folder


def build_pretrained(
    text: str,
    *,
    weights: str = "",
    seed: int = 0,
    sequence: int | None = None,
    dropout: float = 0.0,
    device: str | torch.device | None = None,
) -> nn.Module:
    """The model that a config describes, in float32.

    Args:
        weights: a folder of safetensors to start from; empty: first values drawn from `seed`.
        device: "meta" lays it out without values.
    """
    config = read_their_config(text)
    check_length(text, config, sequence)
    if dropout:
        remedy = "Set it there, under the name this model has for it, and leave model.dropout out."
        raise PlanError("model.dropout", f"a config says its own, as {text} does", remedy)
    kind = class_of(text, config)
    if weights:
        return load_weights(kind, config, weights)
    home = torch.device(device) if device is not None else torch.get_default_device()
    with torch.random.fork_rng(devices=[]), home:
        torch.manual_seed(seed)
        return lay_out(text, kind, config)


def lay_out(text: str, kind: Any, config: Any) -> nn.Module:
    try:
        return kind._from_config(config, dtype=torch.float32)
    except Exception as broken:
        raise ModelError(
            "model", f"{text} cannot be built ({said(broken)})", "Mend it."
        ) from broken


def read_their_config(text: str) -> Any:
    """The config of a file, or of a folder that holds one."""
    path = Path(text).expanduser()
    path = path / "config.json" if path.is_dir() else path
    remedy = "Name a config.json of a Hugging Face model, or a folder with one."
    try:
        table = json.loads(path.read_text())
    except (OSError, ValueError) as broken:
        raise PlanError("model", f"{path} cannot be read ({said(broken)})", remedy) from broken
    word = table.get("model_type") if isinstance(table, dict) else None
    known = transformers().CONFIG_MAPPING
    if word not in known:
        names = nearest(str(word), list(known.keys())) if word else remedy
        raise PlanError("model", f"{path} is of no known model_type ({word})", names)
    try:
        return known[word].from_dict(table)
    except Exception as broken:
        raise PlanError("model", f"{path} is no config of a {word} ({said(broken)})", remedy) from (
            broken
        )


def check_length(text: str, config: Any, sequence: int | None) -> None:
    longest = next((n for name in LENGTHS if isinstance(n := getattr(config, name, None), int)), 0)
    if sequence is not None and longest and sequence > longest:
        problem = f"{sequence} tokens, and {text} is made for {longest}"
        raise PlanError("model.sequence", problem, f"Use {longest} or fewer.")


def class_of(text: str, config: Any) -> Any:
    """The class the config names; else the one its kind of model is trained as."""
    library = transformers()
    named = (config.architectures or [None])[0]
    if named is not None:
        found = getattr(library, named, None)
        if found is None:
            problem = f"{text} names the class '{named}', which transformers does not have"
            raise PlanError("model", problem, "Update transformers, or leave architectures out.")
        return found
    for name in KINDS:
        known = getattr(library, name)._model_mapping  # not `from_config`, which may run their code
        if type(config) in known:
            return known[type(config)]
    problem = f"{text} names no class, and a {config.model_type} is no language model or classifier"
    raise PlanError("model", problem, 'Name one in it: "architectures": ["…"].')


def load_weights(kind: Any, config: Any, folder: str) -> nn.Module:
    """The model with a folder's weights, each of which must be there."""
    place = Path(folder).expanduser()
    if not any(place.glob("*.safetensors")):
        problem = f"{folder} holds no safetensors"
        raise ModelError("model.weights", problem, "Name a folder that save_pretrained wrote.")
    try:
        module, found = kind.from_pretrained(
            place, config=config, dtype=torch.float32, use_safetensors=True,
            local_files_only=True, output_loading_info=True,
        )  # fmt: skip
    except Exception as broken:
        problem = f"{folder} cannot be loaded ({said(broken)})"
        raise ModelError("model.weights", problem, "See whether it is of this model.") from broken
    missing = sorted({*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])})
    if missing:
        problem = f"{folder} lacks {len(missing)} tensors of this model, such as '{missing[0]}'"
        raise ModelError("model.weights", problem, "Name the folder of this very model.")
    return module.train()


def transformers() -> Any:
    """Their library, looked up when a model of theirs is asked for and never before."""
    try:
        return import_module("transformers")
    except ImportError as missing:
        problem = "a Hugging Face model needs the package 'transformers', which is not installed"
        raise ModelError("model", problem, "Install it: pip install 'stepladder[hf]'") from missing


def said(error: Exception) -> str:
    """The error's first line, or its kind where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
